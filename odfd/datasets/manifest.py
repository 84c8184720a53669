"""Reads datasets written as resources: ``$schema: Dataset`` becomes a snapshot. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Final

import msgspec

from chain.codec.bind import Binding, Mistake
from chain.codec.manifest import Manifest
from chain.codec.short_forms import carrying_read_options
from chain.codec.yaml_tree import Node
from chain.ids import DatasetId
from chain.model.events import DatasetKind, DatasetSnapshot, Kind, MetadataEvent
from chain.model.wire import U32
from odfd.flows.manifest import DERIVATION, SCHEDULE, schedule_of
from odfd.flows.spec import DatasetSchedule, DerivationPolicySpec
from odfd.resources import registry
from odfd.resources.manifest import Draft, ResourceHeaders, check_headers, describe
from odfd.resources.owners import OwnedPart
from odfd.resources.references import refers_to
from odfd.resources.resource import Resource
from odfd.resources.types import OWN, Remarks, ResourceType, TypeOperations
from odfd.store.captures import KEEP_RAW, keeps_raw

_SPEC: Final = "spec."
VOLUME: Final = "PersistentVolume"
KEPT_ELSEWHERE: Final = (
    "the bytes of a source are captured where they are ingested; a derived dataset is computed again: odfctl verify"
)
"""What to do instead where the bytes of a source are not kept."""
_KEEP_RAW: Final = Annotated[bool, describe("Whether the bytes of its source are kept: `odfctl raw`.")]
MAX_SHARD_COLUMNS: Final = 16
"""Columns that decide the shard of a row."""


class ShardsSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The chains among which the rows of a new root are divided."""

    number: Annotated[
        U32, describe("1 to 64. To change the number, create another rendition: `odfctl rendition create`.")
    ]
    by: Annotated[
        tuple[str, ...],
        msgspec.Meta(max_length=MAX_SHARD_COLUMNS),
        describe("Columns whose hash decides the shard of a row. If rows are merged, columns of the primary key."),
    ] = ()


class DatasetSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The declaration of a dataset and its chain."""

    kind: (
        Annotated[
            Kind,
            describe("Root: of data that is new. Derivative: derived from other datasets. Required with metadata."),
        ]
        | None
    ) = None
    metadata: (
        Annotated[
            tuple[MetadataEvent, ...],
            describe("The metadata events that the chain is to contain, without events of data. Required with kind."),
        ]
        | None
    ) = None
    did: (
        Annotated[
            str,
            describe(
                "Id of an existing dataset, or of a deleted one whose data is kept. Alone: a dataset that is here, and "
                "that no manifest declares, such as a mirror's."
            ),
        ]
        | None
    ) = None
    shards: Annotated[ShardsSpec, describe("Shards of a new source dataset. Default: one chain."), OWN] | None = None
    volume: (
        Annotated[
            str,
            describe("The PersistentVolume for its slices. Default: this node's state directory."),
            refers_to(VOLUME),
        ]
        | None
    ) = None

    @property
    def is_declared(self) -> bool:
        """Whether it declares the chain, and does not only name a dataset by its did."""
        return self != DatasetSpec(did=self.did) or self.did is None


def prepare(spec: Node, remarks: Remarks) -> Node:
    """Moves ``onError`` and the options of read steps to attributes of their columns."""
    found: list[Mistake] = []
    made = carrying_read_options(spec, found)
    remarks.mistakes.extend(map(_within, found))
    return made


def reads(manifest: Manifest) -> Draft | None:
    """Returns a dataset that is written as the format's own kind as a resource; ``None`` for another kind.

    It states nothing but its name, its kind and its metadata, so whatever else its resource has stays.
    """
    snapshot = manifest.content
    if not isinstance(snapshot, DatasetSnapshot):
        return None
    binding = Binding()
    binding.lines |= {_SPEC + path if path else "": line for path, line in manifest.lines.items()}
    binding.lines["headers.name"] = manifest.lines.get("name", binding.lines.get("", 1))
    draft = Draft(
        type=DATASET_TYPE, headers=ResourceHeaders(name=snapshot.name), typed={}, binding=binding, is_partial=True,
        spec=DatasetSpec(kind=snapshot.kind, metadata=snapshot.metadata), source=manifest.source,
    )  # fmt: skip
    check_headers(draft)
    return draft


async def _fetch_declaration(operations: TypeOperations, view: Any) -> Any:
    """Returns the declaration in the chain, and the volume, which only the manifest says."""
    spec = await operations.declared(view.headers.get("did", view.name))
    volume = None if view.spec is None else view.spec.get("volume")
    return spec if volume is None else {**spec, "volume": volume}


def check_dataset(draft: Draft) -> None:
    """Adds the mistakes of a Dataset to its draft."""
    for key in ("kind", "metadata") if draft.spec.is_declared else ():
        if getattr(draft.spec, key) is None:
            draft.note("spec", f"{key} is missing", "required-field")
    if draft.spec.is_declared:
        draft.attempt(f"{_SPEC}did", DatasetId.parse, draft.spec.did)
    if SCHEDULE in draft.typed:
        draft.attempt(f"headers.annotations.{SCHEDULE}", lambda _: draft.typed[SCHEDULE].check(), "")
    if draft.typed.get(KEEP_RAW) and draft.spec.kind is DatasetKind.DERIVATIVE:
        draft.note(f"headers.annotations.{KEEP_RAW}", "a derived dataset has no source", "raw-owner", KEPT_ELSEWHERE)


def _parts(owner: Resource) -> Iterator[OwnedPart]:
    """Yields what a dataset makes, and checks its annotations, also those that were set by hand. Raises Invalid."""
    keeps_raw(owner.annotations)
    yield from schedule_of(owner)


def _within(mistake: Mistake) -> Mistake:
    return Mistake(_SPEC + mistake.path, mistake.line, mistake.message, mistake.rule, mistake.hint)


DATASET_TYPE: Final = ResourceType(
    names=registry.DATASET,
    about="A dataset of this node: a chain of metadata blocks, and the data that they name.",
    spec=DatasetSpec, prepare=prepare, reads=reads,
    annotations={SCHEDULE: DatasetSchedule, DERIVATION: DerivationPolicySpec, KEEP_RAW: _KEEP_RAW},
    parts=_parts,
    check=check_dataset, declared=_fetch_declaration, namesake="Mirror",
    example="""\
$schema: Dataset
headers:
  name: sensors
spec:
  kind: Root
  metadata:
  - kind: AddPushSource
    sourceName: default
    read:
      kind: NdJson
      schema:
        fields:
        - {name: event_time, type: {kind: Timestamp, unit: Millisecond, timezone: UTC}}
        - {name: celsius, type: Float64}
    merge: {kind: Append}
  - kind: SetInfo
    description: Temperatures of a house
    keywords: [example]
""",
)  # fmt: skip

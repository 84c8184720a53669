"""Plans one ingest transaction as a value: the request to the engine, and the data that ``settlement`` needs.

Pure. A plan is a function of the chain's state, the source, the files fetched and the block's time; planned again after
a crash on the same head and files it is the same plan, with the same transaction id, so nothing is done twice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from chain.data.ddl import parse_ddl
from chain.errors import Invalid, Refused
from chain.ids import DatasetId
from chain.instant import Instant
from chain.model.events import (
    AddPushSource,
    DatasetKind,
    MetadataEvent,
    SetPollingSource,
    SourceState,
)
from chain.model.read_options import quarantine_of
from chain.model.schema import DataSchema
from chain.model.source import MergeAppend, MergeStrategy, ReadStep, Transform, traits
from chain.multihash import Multihash
from chain.state import ChainState
from chain.store.base import UpperMove
from engines.contract import IngestBatchRequest, QuarantineTarget, SkippedFile
from odfd.ingest.fetch.source import Local
from odfd.ingest.settings import IngestSettings

LINK_TYPE: Final = "opendatafabric.org/type"
"""Attribute by which a column declares that its values name objects."""


class SourceInForce(msgspec.Struct, frozen=True, kw_only=True):
    """The steps that turn files into rows: the common part of polling and push sources."""

    name: str
    read: ReadStep
    preprocess: Transform | None
    merge: MergeStrategy


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """The files of one transaction."""

    paths: tuple[Path, ...]
    names: tuple[str, ...]
    identity: str
    """A text that changes whenever the bytes do."""
    event_time: Instant | None = None
    state: SourceState | None = None
    fills_event_time: bool = False
    """Whether rows without event time get ``event_time``."""
    skipped: tuple[SkippedFile, ...] = ()
    """Further files of the source that are not read."""
    remarks: tuple[str, ...] = ()
    """Assumptions made while the files were prepared, as sentences for people."""
    local: Local | None = None
    """The original file, if others may still write to it."""
    raw: tuple[Path, ...] = ()
    """The same files as they came from the source; empty: equal to ``paths``."""
    decoded: bool = False
    """Whether the transport's gzip was undone."""


class EarlierSlices(NamedTuple):
    """Files with earlier rows, for one ingest."""

    files: list[tuple[Multihash, Path]]
    """Files to give to the engine, oldest first."""
    bounds: tuple[Multihash, Path] | None = None
    """Hash and path of a file with the bounds of older files, which are given on request; ``None``: there are none."""
    older: Callable[[Collection[str] | None], list[tuple[Multihash, Path]]] = lambda _: []
    """Returns the older files of these names, or all of them for ``None``, oldest first."""


NO_HISTORY: Final = EarlierSlices([])


class QuarantineDataset(msgspec.Struct, frozen=True, kw_only=True):
    """The quarantine dataset that receives another's unreadable records; ``None``: not made yet."""

    path: Path
    """Where the engine writes the records."""
    dataset: DatasetId | None = None
    state: ChainState | None = None

    @property
    def next_offset(self) -> int:
        return 0 if self.state is None else self.state.next_offset


class PlanTerms(msgspec.Struct, frozen=True, kw_only=True):
    """Further inputs of a plan, besides the chain's state, the source, its files and the time."""

    output: Path
    """Where the engine writes the slice."""
    settings: IngestSettings
    """How large sources and records may be."""
    upper: UpperMove | None = None
    """The frontier for which it is planned; ``None``: nothing is committed."""
    earlier: EarlierSlices = NO_HISTORY
    """Slices, if the strategy needs them."""
    founding: tuple[MetadataEvent, ...] = ()
    """Events to commit before the data: a push source that its first use creates."""
    quarantine: QuarantineDataset | None = None
    """The dataset for records that cannot be read; ``None``: files with such records are refused."""
    needs_event_time: bool = False
    """Whether the files must have an event time, as earlier ones had."""
    allows_null_keys: bool = False
    purpose: str = ""
    """The beginning of the transaction id of what is computed only to be compared."""


class IngestPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A planned ingest: ``request`` for the engine; the rest turns its output into events after ``state``."""

    upper: UpperMove | None
    state: ChainState
    request: IngestBatchRequest
    earlier: EarlierSlices
    source_state: SourceState | None
    skipped: tuple[SkippedFile, ...] = ()
    remarks: tuple[str, ...] = ()
    founding: tuple[MetadataEvent, ...] = ()
    quarantine: QuarantineDataset | None = None


def polling(state: ChainState) -> tuple[SetPollingSource, SourceInForce]:
    """Returns the polling source in force. Raises Refused for datasets without one."""
    require_root(state)
    found = state.polling_source
    if found is None:
        hint = "push data: odfctl ingest NAME FILE" if state.active_push_sources else "add one with SetPollingSource"
        raise Refused("the dataset has no polling source", rule="polling-source", hint=hint)
    return found, SourceInForce(name="default", read=found.read, preprocess=found.preprocess, merge=found.merge)


PUSH_SOURCE: Final = "push-source"


def find_push_source(
    state: ChainState, name: str | None, read: ReadStep | None
) -> tuple[SourceInForce, tuple[MetadataEvent, ...]]:
    """Returns the push source to use, and the event that creates it on its first use.

    ``read``: how to read files, if the dataset has no push source yet. Raises Refused, Invalid.
    """
    require_root(state)
    if state.polling_source is not None:
        raise Refused("the dataset polls its source", rule=PUSH_SOURCE, hint="bring it up to date with `odfctl pull`")
    sources = state.active_push_sources
    if name is None and len(sources) == 1:
        name = next(iter(sources))
    if name is None and sources:
        known = ", ".join(sorted(sources))
        raise Invalid("the dataset has several push sources", rule=PUSH_SOURCE, hint=f"name one of {known}")
    if name is not None and name not in sources:
        known = ", ".join(sorted(sources)) or "none"
        raise Invalid(f"no push source {name!r}", rule=PUSH_SOURCE, hint=f"there are: {known}")
    if name is not None:
        found = sources[name]
        if read is not None and type(read) is not type(found.read):
            raise Refused(
                f"the push source {name!r} reads {_format(found.read)}, not {_format(read)}",
                rule="push-format",
                hint="leave out the format, or name a source that reads it",
            )
        return SourceInForce(name=name, read=found.read, preprocess=found.preprocess, merge=found.merge), ()
    if read is None:
        raise Invalid("the dataset has no push source yet", rule=PUSH_SOURCE, hint="say --format csv or another")
    made = AddPushSource(source_name="auto", read=read, merge=MergeAppend())
    return SourceInForce(name="auto", read=read, preprocess=None, merge=made.merge), (made,)


def _format(read: ReadStep) -> str:
    return str(type(read).__struct_config__.tag)


def guesses_columns(source: SourceInForce) -> bool:
    """Whether the columns are taken from the files."""
    return source.preprocess is None and declared_columns(source.read) is None


def declared_columns(read: ReadStep) -> DataSchema | None:
    """Returns the columns that a read step declares; ``None``: the files define them."""
    if read.schema is not None and read.schema.fields:
        return read.schema
    return parse_ddl(read.ddl_schema) if read.ddl_schema else None


def require_root(state: ChainState) -> None:
    """Raises Refused unless data can be ingested into this chain."""
    if state.kind is not DatasetKind.ROOT:
        raise Refused(
            "rows are ingested into source datasets only", rule="root-only", hint="a derived dataset runs its transform"
        )


def refuse_quarantine(read: ReadStep, merge: MergeStrategy) -> None:
    """Raises Refused if quarantine is combined with merging by Snapshot: a record set aside would count as gone."""
    if traits(merge).whole_state and quarantine_of(read.schema) is not None:
        raise Refused(
            "onError: quarantine, and the source is merged by Snapshot: a record in the quarantine "
            "dataset would count as deleted",
            rule="on-error",
            hint="leave out onError, or read the column at fault as String and convert it in preprocess",
        )


def schema_in_force(state: ChainState) -> DataSchema | None:
    """Returns the schema of the dataset's rows with system columns. Raises Refused for the legacy form."""
    if state.schema is None:
        return None
    if state.schema.schema is None:
        raise Refused(
            "the dataset's schema is in the legacy form (rawArrowSchema), which is kept but not written by",
            rule="legacy-schema",
            hint="append a SetDataSchema with the same columns first",
        )
    return state.schema.schema


def plan_ingest(
    state: ChainState,
    source: SourceInForce,
    batch: Batch,
    system_time: Instant,
    terms: PlanTerms,
) -> IngestPlan:
    """Plans an ingest. Raises Refused."""
    assert state.dataset is not None
    assert state.head is not None
    refuse_links(source.read)
    refuse_quarantine(source.read, source.merge)
    earlier, settings = terms.earlier, terms.settings
    request = IngestBatchRequest(
        dataset_id=state.dataset,
        system_time=system_time,
        vocab=state.vocab,
        read=source.read,
        preprocess=source.preprocess,
        merge=source.merge,
        source_paths=tuple(str(path) for path in batch.paths),
        source_names=batch.names,
        source_event_time=batch.event_time,
        schema=schema_in_force(state),
        prev_data_paths=tuple(str(path) for _, path in earlier.files),
        prev_data_hashes=tuple(str(name) for name, _ in earlier.files),
        prev_watermark=state.watermark,
        next_offset=state.next_offset,
        new_data_path=str(terms.output),
        transaction_id=terms.purpose + transaction_id(state, source, batch, system_time),
        fills_event_time=batch.fills_event_time,
        needs_event_time=terms.needs_event_time,
        allows_null_keys=terms.allows_null_keys,
        max_source_bytes=settings.max_source_bytes,
        max_unpack_ratio=settings.max_unpack_ratio,
        max_record_bytes=settings.max_record_bytes,
        quarantine=_target(state, terms.quarantine),
        prev_data_bounds=None if earlier.bounds is None else str(earlier.bounds[1]),
        prev_data_bounds_hash=None if earlier.bounds is None else str(earlier.bounds[0]),
    )
    return IngestPlan(
        upper=terms.upper,
        state=state,
        request=request,
        earlier=earlier,
        source_state=batch.state,
        skipped=batch.skipped,
        remarks=batch.remarks,
        founding=terms.founding,
        quarantine=terms.quarantine,
    )


def _target(state: ChainState, quarantine: QuarantineDataset | None) -> QuarantineTarget | None:
    if quarantine is None:
        return None
    return QuarantineTarget(path=str(quarantine.path), next_offset=quarantine.next_offset, follows=str(state.head))


def transaction_id(state: ChainState, source: SourceInForce, batch: Batch, system_time: Instant) -> str:
    """Derives the id from all inputs: dataset, head, source, its state and files, and the time of the block."""
    parts = (
        bytes(state.dataset or b""),
        bytes(state.head or b""),
        source.name,
        source.read,
        source.preprocess,
        source.merge,
        state.source_state,
        batch.identity,
        batch.event_time,
        system_time,
    )
    return str(Multihash.sha3_256(msgspec.json.encode(parts, order="deterministic")))


def refuse_links(read: ReadStep) -> None:
    """Refuses columns of links, as the existence of linked objects cannot be checked yet. Raises Refused."""
    fields = read.schema.fields if read.schema is not None else ()
    for field in fields:
        if field.extra and LINK_TYPE in field.extra:
            raise Refused(
                f"column {field.name!r} names linked objects, which cannot be checked yet",
                rule="linked-objects",
                hint=f"leave out the attribute {LINK_TYPE}",
            )

"""Lists, shows, renames and removes datasets, and reads their blocks and rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec

from chain.codec.arrow_schema import schema_of
from chain.codec.bind import plain_of
from chain.codec.manifest import to_builtins
from chain.data.arrow_schema import to_arrow
from chain.data.json_values import plain_rows
from chain.errors import NotFound
from chain.ids import DatasetId
from chain.state import load_state
from odfd.access.relations import Action
from odfd.control import wire
from odfd.control.operations import DATASET_PATH, DEFAULT_ROWS, KINDS, MAX_ROWS, Parameter, Permission, operation
from odfd.datasets import previews
from odfd.datasets.creation import declaration
from odfd.datasets.feeding import check_fed
from odfd.datasets.local_data import held_from, need_data
from odfd.datasets.manifest import DatasetSpec
from odfd.datasets.shard_reading import check_united, find_end
from odfd.ingest.push import commit_point, given_id
from odfd.queries.sharded_cuts import complete_sizes
from odfd.services.datasets.blocks import BlockReader
from odfd.services.datasets.profiles import profile_of
from odfd.services.ingest.own_roots import check_owner
from odfd.services.resources.types import TYPES
from odfd.services.views.dataset_states import DatasetStates
from odfd.services.views.views import schema_view
from odfd.store.catalog import is_one_chain
from odfd.store.directory import StateDirectory
from odfd.store.pushes import PushTable

_TYPE: Final = TYPES.find_schema("Dataset")
_PROFILE: Final = Parameter("profile", "flag", "With statistics of its columns.")
_LIMIT: Final = Parameter("limit", "number", "Blocks or records at the most.", 1, MAX_ROWS, DEFAULT_ROWS)
_BEFORE: Final = Parameter(
    "before", "text", "Only blocks that come after this one: its hash, or of one chain its sequence number."
)
_EPOCH: Final = Parameter("epoch", "number", "Blocks of this epoch, which a later one dropped.")


class DatasetService:
    """The API service for the datasets of a node."""

    def __init__(
        self,
        home: StateDirectory,
        states: DatasetStates,
    ) -> None:
        self._home, self._views = home, states.views
        self.states = states
        self._blocks = BlockReader(home, states.views)

    @operation("GET", DATASET_PATH + "/commit-point", needs=Action.WRITE)
    def commit_point(self, ref: str) -> wire.CommitPointView:
        """Returns where the dataset ends, in all shards, and its last push. Raises Refused for another node's."""
        entry = self._home.resolve(ref)
        check_owner(self._home, entry)
        check_fed(self._home, entry.id)
        # In this order: a push that comes between is told, and what is made to follow the older head is refused.
        head = commit_point([self._home.chains.chain(each) for each in self._home.shards_of(entry.id)])
        last = PushTable(self._home.database).newest(entry.id)
        return wire.CommitPointView(
            id=str(entry.id), block=str(head.hash), sequence_number=head.sequence_number,
            push=None if last is None else given_id(last),
        )  # fmt: skip

    @operation("GET", DATASET_PATH + "/detail", needs=Permission.BY_RULE)
    def describe(self, ref: str, *, profile: Annotated[bool, _PROFILE] = False) -> wire.DatasetDetail:
        """Describes a dataset; with ``profile`` also the values of its columns, from the files of its slices."""
        entry = self._home.resolve(ref)
        detail = self._views.detail(entry)
        shards = (entry.id,) if is_one_chain(ref) else self._home.shards_of(entry.id)
        (view,) = self.states.complete([detail.dataset])
        told = profile_of(self._home, entry, shards) if profile else None
        return msgspec.structs.replace(detail, dataset=view, profile=told)

    @operation("GET", DATASET_PATH + "/snapshot", needs=Action.READ)
    def snapshot(self, ref: str) -> dict[str, Any]:
        """Returns the dataset as a DatasetSnapshot, the older form of manifests; applying it changes nothing."""
        entry = self._home.resolve(ref)
        declared = declaration(load_state(self._home.chains.chain(entry.id)), entry.name)
        return {"kind": "DatasetSnapshot", "version": 1, "content": to_builtins(declared)}

    @operation(needs=Action.READ)
    def declared(self, ref: str) -> dict[str, Any]:
        """Returns the spec of the dataset as its chain declares it now, whoever wrote that."""
        entry = self._home.resolve(ref)
        said = declaration(load_state(self._home.chains.chain(entry.id)), entry.name)
        return plain_of(DatasetSpec(kind=said.kind, metadata=said.metadata))

    @operation("GET", DATASET_PATH + "/blocks", needs=Action.READ)
    def log(
        self,
        ref: str,
        kinds: Annotated[Sequence[str], KINDS],
        limit: Annotated[int, _LIMIT],
        before: Annotated[str | None, _BEFORE],
        epoch: Annotated[int | None, _EPOCH] = None,
    ) -> Sequence[wire.BlockView]:
        """Lists blocks of a dataset, newest first."""
        return self._blocks.log(ref, kinds, limit, before, epoch)

    @operation("GET", DATASET_PATH + "/blocks/{at}", needs=Action.READ)
    def block(self, ref: str, at: str) -> wire.BlockDetail:
        """Shows a block. ``at`` is its hash, or in one chain its sequence number in digits."""
        return self._blocks.block(ref, at)

    @operation("GET", DATASET_PATH + "/tail", needs=Action.READ)
    def tail(self, ref: str, limit: Annotated[int, _LIMIT]) -> wire.Records:
        """Returns the last records in the order of their offsets."""
        entry = self._home.resolve(ref)
        chain = self._home.chains.chain(entry.id)
        state = load_state(chain)
        described = schema_view(entry.name, state)
        need_data(self._home, entry.id, entry.name)
        if state.schema is None:
            return wire.Records(columns=(), rows=(), dataset=self._views.dataset(entry))
        schema, first = to_arrow(schema_of(state.schema)), held_from(self._home, entry.id)
        shards = (entry.id,) if is_one_chain(ref) else self._home.shards_of(entry.id)
        if len(shards) == 1:
            end = None
            if not is_one_chain(ref):
                check_united(self._home, entry)
                end = find_end(self._home, entry.id)
            before = None if end is None else end[1]
            table = previews.tail(chain, self._home.slices.of(entry.id), limit, schema, first, before)
        else:
            sources = map(self._home.chains.chain, shards), map(self._home.slices.of, shards)
            cut = zip(*sources, complete_sizes(self._home, shards), strict=True)
            table = previews.tail_of_shards(tuple(cut), limit, schema, state.vocab)
        rows = () if table is None else tuple(plain_rows(table))
        return wire.Records(columns=described.fields, rows=rows, dataset=self._views.dataset(entry))

    @operation("GET", DATASET_PATH + "/schema", needs=Action.READ)
    def schema(self, ref: str) -> wire.Schema:
        """Returns the columns of a dataset. Raises NotFound, Invalid."""
        entry = self._home.resolve(ref)
        return schema_view(entry.name, load_state(self._home.chains.chain(entry.id)))


def known_dataset(home: StateDirectory, ref: str) -> DatasetId:
    """Returns the id that a ref names, whether or not the dataset has a name here. Raises NotFound, Invalid."""
    with home.catalog() as catalog:
        try:
            return catalog.resolve(ref).id
        except NotFound:
            if ref.startswith("did:"):
                return DatasetId.parse(ref)
            raise

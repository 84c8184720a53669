"""Checks what another node proposes for shards that are written together: all at once, and rows where they belong.

A writer that may append to a collection of several shards could otherwise set one apart from the others, or put rows of
one key into two. Blocking; slices are read in batches. Spec: docs/spec/collections.md#propose.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from chain.data.parquet import open_slice
from chain.data.partition import shards_of
from chain.errors import Refused
from chain.ids import DatasetId
from chain.libraries import pa
from chain.model.events import AddData
from chain.state import ChainState, load_state
from chain.store.database import Database
from chain.store.files import check_file
from chain.store.objects import DiskObjects
from chain.store.shards import Proposal
from chain.store.sqlite import SqliteChains
from odfd.renditions import tables
from odfd.renditions.tables import Member
from odfd.trust.signing.proposed_blocks import known_event


class _Part(NamedTuple):
    """A shard's part of a proposal, on the state before it."""

    proposal: Proposal
    state: ChainState

    @property
    def is_next(self) -> bool:
        """Whether it follows the head, so that it may be stored."""
        blocks = self.proposal.blocks
        return not blocks or blocks[0].prev_block_hash == self.state.head

    @property
    def said(self) -> tuple[object, object]:
        """Watermark and source state after it."""
        data = [each.event for each in self.proposal.blocks if isinstance(each.event, AddData)]
        if data:
            return data[-1].new_watermark, data[-1].new_source_state
        return self.state.watermark, self.state.source_state


class ShardedProposals:
    """The checks of one node, from worker threads."""

    def __init__(self, database: Database, chains: SqliteChains, objects: DiskObjects) -> None:
        self._database, self._chains, self._objects = database, chains, objects

    def first_of(self, dataset: DatasetId) -> DatasetId:
        """Returns the chain whose authority says who may write: the first of several shards, else the chain itself."""
        with self._database.read() as connection:
            member = tables.member_of(connection, dataset)
        return dataset if member is None else member.dataset

    def check_whole(self, proposals: Sequence[Proposal]) -> None:
        """Raises Refused for a part of a collection's shards, or for parts that would set shards apart."""
        for member, parts in self._groups(proposals):
            _check_together(member, parts)

    def check_rows(self, proposals: Sequence[Proposal]) -> None:
        """Raises Refused for a row that is not in the shard that its hash decides. Reads the slices, which are here."""
        for member, parts in self._groups(proposals):
            for part in parts:
                if part.is_next:
                    self._check_slices(member, part.proposal)

    def _groups(self, proposals: Sequence[Proposal]) -> list[tuple[Member, list[_Part]]]:
        """Returns the parts of each rendition of several shards. Raises Refused for one that is not active."""
        found: dict[DatasetId, tuple[Member, list[_Part]]] = {}
        with self._database.read() as connection:
            for each in proposals:
                member = tables.member_of(connection, each.dataset)
                if member is None:
                    continue
                tables.check_fed(connection, member.dataset)
                part = _Part(each, load_state(self._chains.chain(each.dataset)))
                found.setdefault(member.dataset, (member, []))[1].append(part)
        return list(found.values())

    def _check_slices(self, member: Member, proposal: Proposal) -> None:
        own = member.shards.index(proposal.dataset)
        for block in proposal.blocks:
            if not isinstance(block.event, AddData) or (data := block.event.new_data) is None:
                continue
            path = self._objects.path(data.physical_hash)
            check_file(path, data.physical_hash)
            with open_slice(path) as file:
                for batch in file.batches(columns=list(member.row.by)):
                    rows = pa.Table.from_batches([batch]).replace_schema_metadata(None)
                    if (shards_of(rows, member.row.by, len(member.shards)) != own).any():
                        raise Refused(
                            f"a slice of {proposal.dataset.short} has rows of another shard",
                            rule="shard-rows",
                            hint=f"{', '.join(member.row.by)} decides the shard of a row",
                        )


def _check_together(member: Member, parts: Sequence[_Part]) -> None:
    """Raises Refused unless the parts are a transaction of all shards, of one time."""
    count = len(member.shards)
    if {part.proposal.dataset for part in parts} != set(member.shards):
        raise _parted(f"a proposal for {len(parts)} of {count} shards")
    times = {part.proposal.start for part in parts if part.proposal.blocks}
    if len({part.proposal.new_upper for part in parts}) != 1 or len(times) > 1:
        raise _parted(f"a proposal that ends at different times in {count} shards")
    if not all(part.is_next for part in parts):
        return  # compare-and-append finds it there, or says what is
    metadata = [
        [event for event in map(known_event, part.proposal.blocks) if not isinstance(event, AddData)] for part in parts
    ]
    if any(each != metadata[0] for each in metadata) or any(part.said != parts[0].said for part in parts):
        raise _parted("metadata, a watermark or a source state that differs between shards")


def _parted(text: str) -> Refused:
    return Refused(
        f"{text}: they are written together",
        rule="shard-parted",
        hint="propose one transaction of all shards: odfctl get renditions names them",
    )

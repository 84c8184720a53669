"""Counts what became of the steps of an instance, and says what is wrong where a commit point refused one."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from chain.errors import Conflict, Refused
from chain.ids import DatasetId
from chain.multihash import Multihash
from chain.store.shards import Conflicting, Outcome, ShardSealed


class InstanceCounts(msgspec.Struct, kw_only=True):
    """Counts the work of one instance."""

    bound: int = 0
    """Bindings of its own that were accepted."""
    forgotten: int = 0
    """Bindings of its own that came after another one."""
    written: int = 0
    """Transactions that it was the first to write."""
    repeated: int = 0
    """Transactions that were there already, with the same content."""
    overtaken: int = 0
    """Transactions that it had begun when their bytes were gone, since another one had written them."""
    paused: int = 0
    """Pauses in which it let another instance go on."""
    accepted: int = 0
    """Gaps of the source that it bound."""

    @property
    def first(self) -> int:
        """Number of steps that no other instance had taken before."""
        return self.bound + self.written

    @property
    def second(self) -> int:
        """Number of steps that another instance had taken before."""
        return self.forgotten + self.repeated + self.overtaken


def check_outcomes(outcomes: Sequence[Outcome], time: int) -> None:
    """Raises Conflict if a shard has another transaction of this time, Refused if one is sealed."""
    for each in outcomes:
        if isinstance(each, Conflicting):
            stored, proposed = (_named(names) for names in (each.stored, each.proposed))
            raise Conflict(
                f"at {time} the collection has the blocks {stored}, and this instance computed {proposed}",
                rule="reclock-conflict",
                hint="instances of different versions disagree; nothing was written. Let one version ingest",
            )
        if isinstance(each, ShardSealed):
            raise sealed(None)


def _named(blocks: Sequence[Multihash]) -> str:
    return ", ".join(each.short for each in blocks) or "none"


def sealed(chain: DatasetId | None) -> Refused:
    named = "a shard" if chain is None else chain.short
    return Refused(f"{named} is sealed: it takes no block more", rule="shard-sealed")

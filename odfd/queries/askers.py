"""Says who asks a query: what they may read, what their names mean, and with whom they take turns."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from chain.ids import DatasetId
from chain.multihash import Multihash


class Crowd(enum.Enum):
    """Callers who are treated alike. The value: seconds that a query has while another caller waits."""

    OWNER = float("inf")
    ACCOUNTS = 60.0
    STRANGERS = 10.0


class QueryCaller(msgspec.Struct, frozen=True):
    """A caller whose queries take turns with those of others."""

    crowd: Crowd
    name: str = ""
    """An account's id, or a stranger's block of addresses; empty if it is not known, and then each is another's."""


OWNER_ITSELF: Final = QueryCaller(Crowd.OWNER, "owner")


class Bound(msgspec.Struct, frozen=True):
    """The dataset to which a name in a query is bound, up to a block; ``None``: all blocks."""

    dataset: DatasetId
    block: Multihash | None = None
    shards: tuple[DatasetId, ...] = ()
    """All of a collection, where it has several; ``dataset`` is the first."""


def bound_name(name: str, clauses: str = "") -> str:
    """The key of a name among bound ones; ``clauses``: of time, where it means something else with them."""
    return f"{name.lower()} {clauses}".strip()


class Asker(msgspec.Struct, frozen=True, kw_only=True):
    """The caller: what they may read, and their names for it."""

    served: Callable[[DatasetId], int] | None = None
    """Returns how many blocks of a dataset they may read; 0: the dataset does not exist for them.
    ``None``: they may read all."""
    bound: Mapping[str, Bound] = {}
    """Datasets by ``bound_name``. If there are any, a query can read no others."""
    caller: QueryCaller = OWNER_ITSELF
    """With whom its queries take turns."""
    reads: Callable[[str], bool] | None = None
    """For an account: whether it may read a resource, by its id. Its names are looked up as it means them."""

    @property
    def account(self) -> str | None:
        """The id of the account; ``None`` for the node's owner, and for callers without one."""
        return (self.caller.name or None) if self.reads is not None else None

    def find_bound(self, ref: str, clauses: str) -> Bound | None:
        """Returns what a name is bound to, with these clauses of time or with any."""
        return self.bound.get(bound_name(ref, clauses)) or self.bound.get(bound_name(ref))


OWNER: Final = Asker()
"""The node's owner."""

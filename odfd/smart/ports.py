"""Declares what the server of the smart protocol asks of its node. ``odfd.api.smart_backend`` implements it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from chain.ids import DatasetId
from chain.multihash import Multihash
from odfd.site.ports import SiteLibrary
from odfd.smart.batches import NamedBlock
from odfd.smart.messages import ObjectFile


class ChainLibrary(Protocol):
    """The port to chains that one visitor may read, called from worker threads. All raise Environment."""

    def find(self, ref: str) -> DatasetId | None:
        """Returns a dataset by local name, or id with or without ``did:odf:``; ``None``: absent, or not for them."""

    def size(self, dataset: DatasetId) -> int:
        """Counts the blocks that they may read."""

    def number_of(self, dataset: DatasetId, name: Multihash) -> int | None:
        """Returns the number of one of these blocks; ``None``: it is none of them."""

    def blocks(self, dataset: DatasetId, start: int, max_bytes: int) -> Sequence[bytes]:
        """Returns some of these blocks from a number on, at least one where there is one."""


class VisitorLibrary(SiteLibrary, ChainLibrary, Protocol):
    """All that one visitor may read."""


class Incoming(Protocol):
    """An object that is being uploaded, called from worker threads. ``close`` is called in any case."""

    def write(self, data: bytes) -> None:
        """Raises Invalid for more than was announced, Environment."""

    def finish(self) -> None:
        """Keeps the object. Raises Invalid for bytes of another hash."""

    def close(self) -> None: ...


class PushSession(Protocol):
    """A push to one dataset under way. All but ``commit`` are called from worker threads, one at a time."""

    def head(self) -> Multihash | None:
        """Returns the head that the dataset has; ``None``: it is not here."""

    def stage(self, blocks: Sequence[NamedBlock]) -> None:
        """Keeps blocks, whose hashes are checked, oldest first. Raises Invalid, Environment."""

    def lacking(self, files: Sequence[ObjectFile]) -> Collection[Multihash]:
        """Checks what was staged, and expects the uploads of those that are not here, which it returns.

        Raises Invalid for a chain that does not go on from the head, a name that is taken, or objects that no staged
        block names; Refused, Environment.
        """

    async def commit(self) -> None:
        """Verifies all of it, and moves the head. Raises Conflict where that is not any more what ``head`` returned."""

    def close(self) -> None:
        """Forgets what was staged; objects that came stay."""


class SmartBackend(Protocol):
    """The port to what a token is good for, called from worker threads. All raise Refused for a token that is not."""

    def library(self, token: str) -> VisitorLibrary:
        """Returns what its account may read."""

    def push(self, token: str, ref: str) -> PushSession:
        """Begins a push. Raises NotFound for a dataset that may not be read, Refused where it may not be changed."""

    def upload(self, token: str, ref: str, name: Multihash, size: int) -> Incoming | None:
        """Takes an object that a push of the account expects; ``None``: it is here. Raises NotFound, Invalid."""

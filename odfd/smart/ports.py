"""Declares the interfaces of the node that the smart protocol's server uses;
``odfd.api.smart_backend`` implements them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from chain.ids import DatasetId
from chain.multihash import Multihash
from odfd.site.ports import SiteLibrary
from odfd.smart.batches import NamedBlock
from odfd.smart.messages import ObjectFile


class ChainLibrary(Protocol):
    """The chains that one visitor may read; called from worker threads. All methods raise Environment."""

    def find(self, ref: str, file: str = "") -> DatasetId | None:
        """Returns a dataset by local name, or id with or without ``did:odf:``, as ``SiteLibrary`` does;
        ``None``: absent, or hidden from the visitor."""

    def size(self, dataset: DatasetId) -> int:
        """Returns the number of blocks that the visitor may read."""

    def number_of(self, dataset: DatasetId, name: Multihash) -> int | None:
        """Returns the number of one of these blocks; ``None``: there is none of that hash."""

    def blocks(self, dataset: DatasetId, start: int, max_bytes: int) -> Sequence[bytes]:
        """Returns some of these blocks from a number on, at least one if there is one."""


class VisitorLibrary(SiteLibrary, ChainLibrary, Protocol):
    """Everything that one visitor may read."""


class Incoming(Protocol):
    """An object that is being uploaded; called from worker threads. ``close`` is called in any case."""

    def write(self, data: bytes) -> None:
        """Appends data. Raises Invalid for more than was announced, Environment."""

    def finish(self) -> None:
        """Keeps the object. Raises Invalid if its hash is not its name."""

    def close(self) -> None: ...


class PushSession(Protocol):
    """A push to one dataset. All methods but ``commit`` are called from worker threads, one at a time."""

    def head(self) -> Multihash | None:
        """Returns the head of the dataset; ``None``: it is not here."""

    def stage(self, blocks: Sequence[NamedBlock]) -> None:
        """Stages blocks, oldest first, whose hashes were checked. Raises Invalid, Environment."""

    def lacking(self, files: Sequence[ObjectFile]) -> Collection[Multihash]:
        """Checks the staged blocks, returns which of these objects are not here, and expects their uploads.

        Raises Invalid if the chain does not continue from the head, the name is taken, or no staged block names an
        object; Refused, Environment.
        """

    async def commit(self) -> None:
        """Verifies everything, and moves the head.
        Raises Conflict if that is no longer the one that ``head`` returned."""

    def close(self) -> None:
        """Discards staged blocks; uploaded objects stay."""


class SmartBackend(Protocol):
    """The operations that a token allows; called from worker threads. All raise Refused for an invalid token."""

    def library(self, token: str) -> VisitorLibrary:
        """Returns the datasets that the token's account may read."""

    def push(self, token: str, ref: str) -> PushSession:
        """Begins a push. Raises NotFound for a dataset that may not be read,
        Refused for one that may not be changed."""

    async def unite(self, token: str, ref: str, collection: bytes) -> None:
        """Makes one dataset of shards that were pushed by their ids; ``collection``: what says that they belong.

        Awaited in the event loop. Raises Conflict (``shard-missing``) if a shard is not here as far as that says;
        Invalid, NotFound, Refused.
        """

    def upload(self, token: str, ref: str, name: Multihash, size: int) -> Incoming | None:
        """Begins the upload of an object that a push of the account expects; ``None``: it is here.
        Raises NotFound, Invalid."""

"""Declares what a site serves. ``odfd.services.network.site_library`` implements it, by the purpose ``serve``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import msgspec

from chain.ids import DatasetId
from chain.multihash import Multihash
from chain.statements.card import Card
from p2p.web.client import HttpAnswer


class ShownDataset(msgspec.Struct, frozen=True, kw_only=True):
    """A dataset in the list of a site, with the number of its served blocks."""

    name: str
    id: str
    blocks: int


class SiteLibrary(Protocol):
    """Gives access to served datasets; called from worker threads. ``None`` means absent or private.

    All methods raise Environment.
    """

    def datasets(self, limit: int) -> Sequence[ShownDataset]: ...

    def cards(self, limit: int) -> Sequence[tuple[str, Card]]:
        """Lists cards of served datasets, with their local names."""

    def find(self, ref: str, file: str = "") -> DatasetId | None:
        """Returns a dataset by local name, or id with or without ``did:odf:``.

        ``file``: the one that is read of it. The name of several shards has only what says which they are: rows of one
        of them under that name would be a part.
        """

    def head(self, dataset: DatasetId) -> Multihash | None:
        """Returns the hash of the last served block."""

    def block(self, dataset: DatasetId, name: Multihash) -> bytes | None: ...

    def pack(self, dataset: DatasetId, number: int) -> bytes | None:
        """Returns a pack of many served blocks; ``None`` after the last one."""

    def statement(self, dataset: DatasetId, path: str) -> bytes | None:
        """Returns a file next to the layout, such as ``trust/head``."""

    def object_size(self, name: Multihash) -> int | None: ...

    def read_object(self, name: Multihash, offset: int, length: int) -> bytes:
        """Reads at most ``length`` bytes. Raises NotFound."""


class CatalogueFormat(Protocol):
    """A standard in which the site's cards are one document."""

    MEDIA_TYPE: str

    def catalogue(self, cards: Iterable[tuple[str, Card]]) -> dict[str, Any]: ...


class CheckpointReceiver(Protocol):
    """A witness to which logs submit checkpoints. Called from worker threads."""

    def add_checkpoint(self, body: bytes) -> HttpAnswer:
        """Adds a checkpoint, and returns the response. Raises Environment."""

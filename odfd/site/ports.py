"""Declares what a site serves. ``odfd.api.network.site_library`` implements it by the policy (purpose ``serve``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from chain.ids import DatasetId
from chain.multihash import Multihash
from chain.statements.card import Card
from p2p.web.client import Answer


class ShownDataset(msgspec.Struct, frozen=True, kw_only=True):
    """A dataset in the list of a site."""

    name: str
    id: str
    blocks: int


class SiteLibrary(Protocol):
    """Called from worker threads. ``None``: there is no such thing, or it is not for others. All raise Environment."""

    def datasets(self, limit: int) -> Sequence[ShownDataset]: ...

    def cards(self, limit: int) -> Sequence[tuple[str, Card]]:
        """Of datasets that are served, with their names here."""

    def find(self, ref: str) -> DatasetId | None:
        """By its name here, or its id with or without ``did:odf:``."""

    def head(self, dataset: DatasetId) -> Multihash | None:
        """The last block that is served."""

    def block(self, dataset: DatasetId, name: Multihash) -> bytes | None: ...

    def pack(self, dataset: DatasetId, number: int) -> bytes | None:
        """Blocks that are served, many in a file; ``None`` past the last one."""

    def statement(self, dataset: DatasetId, path: str) -> bytes | None:
        """A file that lies beside the layout, such as ``trust/head``."""

    def object_size(self, name: Multihash) -> int | None: ...

    def read_object(self, name: Multihash, offset: int, length: int) -> bytes:
        """At most ``length`` bytes. Raises NotFound."""


class CheckpointReceiver(Protocol):
    """A witness to which logs submit checkpoints. Called from worker threads."""

    def add_checkpoint(self, body: bytes) -> Answer:
        """What to say. Raises Environment."""

"""Serves a node's datasets to its HTTP site, by their local names and as far as policy permits (``SiteLibrary``)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import NamedTuple

from chain.errors import Invalid, NotFound, Refused
from chain.ids import DID_ODF, DatasetId
from chain.multihash import Multihash
from chain.statements.card import Card
from config.model import Settings
from odfd.network.library import ServingLibrary
from odfd.published.packs import MAX_PACK, PACK, pack
from odfd.published.signed import CARD, COLLECTION, TRUST, collection_state, signed_state
from odfd.queries.doors import Door
from odfd.runtime.http import Application
from odfd.runtime.supervision import Logger
from odfd.site.application import Site
from odfd.site.ports import CheckpointReceiver, ShownDataset
from odfd.site.server import SiteServer
from odfd.smart.ports import SmartBackend
from odfd.smart.server import SmartApplication
from odfd.store.directory import StateDirectory
from odfd.store.ledger.cards import Cards


class NodeSiteLibrary:
    """Implements the site's library over the store of one node.

    ``library`` applies the policy, and checks what leaves.
    """

    def __init__(self, home: StateDirectory, library: ServingLibrary, is_readable: Callable[[DatasetId], bool]) -> None:
        """``is_readable``: whether the visitor may know of a dataset."""
        self._home = home
        self._library = library
        self._is_readable = is_readable

    def datasets(self, limit: int) -> Sequence[ShownDataset]:
        entries = self._home.entries()
        shown: list[ShownDataset] = []
        for entry in entries:
            if len(shown) < limit and (size := self._library.size(entry.id)):
                shown.append(ShownDataset(name=entry.name, id=str(entry.id), blocks=size))
        return shown

    def cards(self, limit: int) -> Sequence[tuple[str, Card]]:
        shown = self.datasets(limit)
        with self._home.database.read() as connection:
            kept = Cards(connection)
            cards = [(each.name, kept.of(DatasetId.parse(each.id))) for each in shown]
        return [(name, card) for name, card in cards if card is not None]

    def find(self, ref: str, file: str = "") -> DatasetId | None:
        found = self._find(ref)
        if found is None or not self._is_readable(found):
            return None
        is_one = found.multibase in ref or file.startswith(TRUST) or len(self._home.shards_of(found)) == 1
        return found if is_one else None

    def _find(self, ref: str) -> DatasetId | None:
        for text in (ref, DID_ODF + ref):
            with suppress(Invalid), self._home.catalog() as catalog:
                if (entry := catalog.look(text)) is not None:
                    return entry.id
        return None

    def head(self, dataset: DatasetId) -> Multihash | None:
        size = self._library.size(dataset)
        return self._home.chains.chain(dataset).block_at(size - 1).hash if size else None

    def block(self, dataset: DatasetId, name: Multihash) -> bytes | None:
        number = self.number_of(dataset, name)
        if number is None:
            return None
        return next(iter(self._library.blocks(dataset, number, 1)), None)

    def size(self, dataset: DatasetId) -> int:
        return self._library.size(dataset)

    def number_of(self, dataset: DatasetId, name: Multihash) -> int | None:
        try:
            number = self._home.chains.chain(dataset).block_by_hash(name).sequence_number
        except NotFound:
            return None
        return number if number < self._library.size(dataset) else None

    def blocks(self, dataset: DatasetId, start: int, max_bytes: int) -> Sequence[bytes]:
        return self._library.blocks(dataset, start, max_bytes)

    def pack(self, dataset: DatasetId, number: int) -> bytes | None:
        start = number * PACK
        if start >= self._library.size(dataset):
            return None
        return pack(self._library.blocks(dataset, start, MAX_PACK))

    def statement(self, dataset: DatasetId, path: str) -> bytes | None:
        """Returns a statement file; ``None`` until all blocks up to the signed head are served, which readers need."""
        if path in (COLLECTION, CARD):
            return self._collection(dataset, path)
        try:
            signed = signed_state(self._home.database, self._home.chains, dataset)
        except NotFound:
            return None
        if not signed.is_here or self._library.size(dataset) < signed.size:
            return None
        return dict(signed.files).get(path)

    def _collection(self, dataset: DatasetId, path: str) -> bytes | None:
        """Returns what says which shards belong together; ``None`` for one chain, and until all of it is served."""
        shards = self._home.shards_of(dataset)
        if len(shards) < 2:
            return None
        try:
            found, states = collection_state(self._home.database, self._home.chains, shards)
        except (NotFound, Refused):
            return None
        is_served = all(self._library.size(each) >= of.size for each, of in zip(shards, states, strict=True))
        if not is_served:
            return None
        return found.content if path == COLLECTION else found.raws[0]

    def object_size(self, name: Multihash) -> int | None:
        return self._library.object_size(name)

    def read_object(self, name: Multihash, offset: int, length: int) -> bytes:
        return self._library.read_object(name, offset, length)


class OpenedSite(NamedTuple):
    """The HTTP site of a node, and the application that answers transfers there."""

    server: SiteServer
    smart: SmartApplication


def open_site(
    settings: Settings,
    home: StateDirectory,
    library: ServingLibrary,
    logger: Logger,
    receiver: CheckpointReceiver,
    doors: Collection[Door],
    backend: Callable[[], SmartBackend],
) -> OpenedSite | None:
    """Opens the site; returns ``None`` if the settings name no address for it. ``receiver`` takes checkpoints."""
    if not settings.http.listen:
        return None
    witness = receiver if settings.http.witness else None
    smart = SmartApplication(
        NodeSiteLibrary(home, library, home.visibility.is_public),
        lambda read: Site(read, logger, witness),
        logger,
        backend,
        takes_pushes=settings.http.push,
    )
    site: Application = smart
    for door in doors:
        site = door.wrap_site(site)
    return OpenedSite(SiteServer(settings.http.listen, site, logger), smart)

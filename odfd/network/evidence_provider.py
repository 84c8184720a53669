"""Serves bundles of evidence to peers: a manifest by the bundle's id, which is its hash, and its objects by theirs.

Bundles are served whatever policy says of the chains they concern, because evidence must not depend on the accused
signer. A bundle holds blocks and rows of several datasets, though, and is served only while all of them are public
here. When its manifest is first requested, it is read whole and every hash is checked; parts that an answer is cut
from are compared again. Implements part of ``p2p.ports.Library``; called from worker threads; memory is bounded.
"""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Final

import msgspec
from zlib_ng import zlib_ng

from chain.codec.blocks import decode_block
from chain.errors import Environment, Invalid, NotFound
from chain.ids import DatasetId
from chain.model.events import Seed
from chain.multihash import Multihash
from chain.store.files import disk
from odfd.store.visibility import PublicOf
from odfd.trust.evidence.bundle import BundleReader
from odfd.trust.evidence.bundle_store import BundleStore
from p2p.ports import PeerId

MAX_PLACES: Final = 65_536
"""Objects of all served bundles at most; the bundles requested least recently make room."""
_PART: Final = 1 << 20


class _Place(msgspec.Struct, frozen=True):
    """The place of an object in its bundle's file, with a checksum of every MiB against bit rot."""

    offset: int
    size: int
    checks: tuple[int, ...]


class _Open(msgspec.Struct, frozen=True):
    path: Path
    manifest: bytes
    places: dict[Multihash, _Place]
    datasets: frozenset[DatasetId]
    """Datasets whose chains the bundle holds from their Seed on."""


class EvidenceProvider:
    """The bundles that one node serves."""

    def __init__(self, bundles: BundleStore, public_of: PublicOf) -> None:
        self._bundles = bundles
        self._public_of = public_of
        self._open: OrderedDict[Multihash, _Open] = OrderedDict()
        self._spoilt: dict[Multihash, tuple[int, int]] = {}
        """Damaged files, by their size and time of change, so that no peer can make us read them repeatedly."""
        self._lock = threading.Lock()

    def to(self, peer: PeerId) -> EvidenceProvider:
        """Returns the same provider as seen by a peer."""
        given = copy.copy(self)
        given._public_of = lambda datasets, _=None: self._public_of(datasets, peer)
        return given

    def within(self, public_of: PublicOf) -> EvidenceProvider:
        """Returns the same provider as seen in a network, by what is public there."""
        given = copy.copy(self)
        given._public_of = public_of
        return given

    def size(self, name: Multihash) -> int | None:
        """Returns the size of a manifest or an object; ``None``: not here, or damaged."""
        with self._lock:
            bundle = self._open_object(name)
            if bundle is not None:
                return len(bundle.manifest)
            found = self._place(name)
        return None if found is None else found[1].size

    def read(self, name: Multihash, offset: int, length: int) -> bytes | None:
        """Reads at most ``length`` bytes; ``None`` as for ``size``."""
        with self._lock:
            bundle = self._open_object(name)
            if bundle is not None:
                return bundle.manifest[offset : offset + length]
            found = self._place(name)
        if found is None:
            return None
        data = self._read(*found, offset, length)
        if data is None:
            with self._lock:
                self._forget(found[0])
        return data

    def _place(self, name: Multihash) -> tuple[Path, _Place] | None:
        for bundle in self._open.values():
            if name in bundle.places and self._is_public(bundle):
                return bundle.path, bundle.places[name]
        return None

    def _is_public(self, bundle: _Open) -> bool:
        # A bundle holds blocks and rows of each of them (test_no_verdict_or_evidence_of_a_private_mirror_leaves).
        return len(self._public_of(bundle.datasets)) == len(bundle.datasets)

    def _open_object(self, name: Multihash) -> _Open | None:
        try:
            path = self._bundles.path(name)
        except NotFound:
            self._open.pop(name, None)
            return None
        if name not in self._open and not self._open_it(name, path):
            return None
        self._open.move_to_end(name)
        while len(self._open) > 1 and sum(len(each.places) for each in self._open.values()) > MAX_PLACES:
            self._open.popitem(last=False)
        return self._open[name] if self._is_public(self._open[name]) else None

    def _open_it(self, name: Multihash, path: Path) -> bool:
        """Whether the bundle is whole; a damaged one is reported to peers as absent."""
        try:
            with disk(path):
                found = path.stat()
            state = found.st_mtime_ns, found.st_size
            if self._spoilt.get(name) == state:
                return False
            self._spoilt[name] = state
            self._open[name] = _read_through(path)
        except (Invalid, Environment):
            return False
        del self._spoilt[name]
        return True

    def _forget(self, path: Path) -> None:
        for name in [name for name, bundle in self._open.items() if bundle.path == path]:
            del self._open[name]

    def _read(self, path: Path, place: _Place, offset: int, length: int) -> bytes | None:
        first, stop = offset // _PART, min(-(-(offset + length) // _PART), len(place.checks))
        parts = []
        try:
            with disk(path), path.open("rb") as file:
                file.seek(place.offset + first * _PART)
                for number in range(first, stop):
                    part = file.read(min(_PART, place.size - number * _PART))
                    if zlib_ng.crc32(part) != place.checks[number]:
                        return None
                    parts.append(part)
        except Environment:
            return None
        skip = offset - first * _PART
        return b"".join(parts)[skip : skip + length]


def _read_through(path: Path) -> _Open:
    """Reads and checks a whole bundle. Raises Invalid for a damaged one."""
    places: dict[Multihash, _Place] = {}
    datasets: set[DatasetId] = set()
    with disk(path), path.open("rb") as file:
        reader = BundleReader(file, path.name)
        datasets.add(reader.manifest.accused()[0].dataset)
        for each, pieces in reader.objects():
            offset, start = file.tell(), b""
            checks: list[int] = []
            for piece in pieces:
                start = piece if not checks else b""
                checks.append(zlib_ng.crc32(piece))
            places[each.hash] = _Place(offset, each.size, tuple(checks))
            if each.sequence_number == 0 and (whose := _whose(start)) is not None:
                datasets.add(whose)
    return _Open(path, reader.manifest.encode(), places, frozenset(datasets))


def _whose(raw: bytes) -> DatasetId | None:
    """Returns the dataset of a Seed block; ``None`` for other bytes."""
    try:
        event = decode_block(raw).event
    except Invalid:
        return None
    return event.dataset_id if isinstance(event, Seed) else None

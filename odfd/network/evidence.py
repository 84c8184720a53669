"""Fetches bundles of evidence from peers: first the manifest, whose hash is the bundle's id, then its objects.

A fetch starts when a person asks for a bundle, or ``odfd.trust.validation.evidence_rechecker`` does: one bundle at a
time, within the size limits of bundles, a disk reserve and ten minutes. Every byte is hashed, the accused head must be
signed by a writer of its dataset, and a bundle enters the bundle store only when it is complete.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import trio

from chain.errors import Invalid, NotFound, Remote
from chain.multihash import Multihash
from chain.store.files import disk
from odfd.published.replication import Replication
from odfd.runtime.filesystem import check_room
from odfd.trust.evidence.bundle import MAX_MANIFEST, BundleManifest, decode_manifest
from odfd.trust.evidence.bundle_store import BundleStore
from p2p.ports import PeerId
from p2p.wire.limits import MAX_PACKED

SECONDS: Final = 600.0
"""Limit for one bundle."""
PROBE_SECONDS: Final = 10.0
"""Limit for a peer to say whether it has a bundle."""
MANIFEST_SECONDS: Final = 30.0
"""Limit for a peer to give the manifest, before another peer is tried."""
ASKED: Final = 16
"""Peers that are queried at once."""


class EvidenceFetcher:
    """Fetches bundles for one node. ``folder`` is used by nothing else; ``reserve``: bytes of disk that stay free."""

    def __init__(
        self, replication: Replication, bundles: BundleStore, folder: Path, reserve: Callable[[], int]
    ) -> None:
        self._replication = replication
        self._bundles = bundles
        self._folder = folder
        self._reserve = reserve
        self._alone = trio.Lock()

    async def fetch(self, name: Multihash) -> Path:
        """Fetches a bundle into our store; returns its file. Raises NotFound, Remote, Invalid, Environment."""
        async with self._alone:
            if self._bundles.has(name):
                return self._bundles.path(name)
            # One that was killed leaves pieces behind.
            await trio.to_thread.run_sync(self._clear)
            try:
                with trio.move_on_after(SECONDS):
                    return await self._fetch(name, self._folder)
            finally:
                with trio.CancelScope(shield=True):
                    await trio.to_thread.run_sync(self._clear)
            raise Remote(
                f"evidence {name.short} did not come within {SECONDS / 60:.0f} minutes",
                rule="evidence-time",
                hint="try again when a peer with a faster line is connected: odfctl peer list",
            )

    async def _fetch(self, name: Multihash, folder: Path) -> Path:
        holders = await self._holders(name)
        if not holders:
            raise NotFound(
                f"no connected peer keeps evidence {name.short}",
                rule="evidence",
                hint="its reporter may be offline: odfctl peer list; or get the file from them in another way",
            )
        manifest = await self._manifest(name, holders, folder)
        self._check_disk(manifest.size)
        peers = [peer for peer, _ in holders]
        files = {object_.hash: folder / str(object_.hash) for object_ in manifest.objects}
        small = [object_.hash for object_ in manifest.objects if object_.size <= MAX_PACKED]
        if small:
            await self._replication.fetch_small(peers, small, _Files(folder, small))
        for object_ in manifest.objects:
            if object_.size > MAX_PACKED:
                await self._replication.fetch_object(
                    peers, object_.hash, object_.size, _File(files[object_.hash], object_.hash)
                )
        await trio.to_thread.run_sync(self._bundles.keep, manifest, files)
        return self._bundles.path(name)

    def _clear(self) -> None:
        with disk(self._folder):
            for piece in self._folder.iterdir():
                piece.unlink()

    async def _holders(self, name: Multihash) -> list[tuple[PeerId, int]]:
        """Returns the peers that claim to have the bundle, with the size of its manifest."""
        found: list[tuple[PeerId, int]] = []

        async def ask(peer: PeerId) -> None:
            with trio.move_on_after(PROBE_SECONDS):
                try:
                    size = await self._replication.object_size(peer, name)
                except Remote:
                    return  # one that does not answer keeps nothing for us
                if size is not None and 0 < size <= MAX_MANIFEST:
                    found.append((peer, size))

        views = [view.peer for view in self._replication.peers() if view.connected and not view.blocked]
        while views and not found:
            async with trio.open_nursery() as nursery:
                for peer in views[:ASKED]:
                    nursery.start_soon(ask, peer)
            views = views[ASKED:]
        return found

    async def _manifest(self, name: Multihash, holders: Sequence[tuple[PeerId, int]], folder: Path) -> BundleManifest:
        """Fetches the manifest from one peer after the other, each with the size it stated: a lie harms only itself."""
        path, reasons = folder / "manifest", []
        for peer, size in holders:
            with trio.move_on_after(MANIFEST_SECONDS):
                try:
                    await self._replication.fetch_object([peer], name, size, _File(path, name))
                except (Remote, Invalid) as fault:
                    reasons.append(f"{peer}: {fault.message}")
                    continue
                return await trio.to_thread.run_sync(_read, name, path)
            reasons.append(f"{peer}: sent no manifest in {MANIFEST_SECONDS:.0f} s")
        raise Remote(f"evidence {name.short}: {'; '.join(reasons[:3])}", rule="no-peer", hint="odfctl peer list")

    def _check_disk(self, size: int) -> None:
        """Raises Refused without room for the bundle twice: for a moment it is there in pieces and as one file."""
        why = f"the evidence has {size:,} bytes, which take twice as much"
        check_room(self._folder, self._reserve(), 2 * size, why)


def _read(name: Multihash, path: Path) -> BundleManifest:
    """Reads a manifest. Raises Invalid for a file with the right hash that is not evidence."""
    manifest = decode_manifest(path.read_bytes())
    # Encoded again it loses the fields that are unknown here, so that it could not be given on under this id.
    if manifest.id != name:
        raise Invalid(f"{name.short} is not a manifest as this node writes it", rule="bundle-manifest")
    manifest.accused()
    return manifest


class _File:
    """Receives one object into a file. Implements ``p2p.ports.ObjectSink``."""

    stop: int | None = None

    def __init__(self, path: Path, name: Multihash) -> None:
        self._path, self._name = path, name
        self.abandon()

    def write(self, data: bytes | memoryview) -> None:
        with disk(self._path), self._path.open("ab") as file:
            file.write(data)
        self._hash.update(data)
        self.received += len(data)

    def finish(self) -> None:
        if self._hash.digest() != self._name.digest:
            self.abandon()
            raise Invalid(f"object {self._name.short}: the bytes hash to something else", rule="object-hash")

    def abandon(self) -> None:
        with disk(self._path):
            self._path.write_bytes(b"")
        self._hash = hashlib.sha3_256()
        self.received = 0


class _Files:
    """Receives small objects, each into a file. Implements ``p2p.ports.PackSink``."""

    def __init__(self, folder: Path, names: Sequence[Multihash]) -> None:
        self._folder, self._names = folder, names
        self.received = 0

    def take(self, objects: Sequence[bytes]) -> None:
        for data in objects:
            name = self._names[self.received]
            if Multihash.sha3_256(data) != name:
                raise Invalid(f"object {name.short}: the bytes hash to something else", rule="object-hash")
            path = self._folder / str(name)
            with disk(path):
                path.write_bytes(data)
            self.received += 1

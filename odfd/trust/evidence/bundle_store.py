"""Stores bundles of evidence: one file each, named by its id and the accused signer, within quotas.

A bundle is kept whole and apart from the stores its objects came from, since evidence must outlive the dataset that it
is about. The number and bytes of bundles about one dataset, and of all, are limited; bundles that were found untrue
here are deleted first, then the oldest. Made once per process; safe to use from any thread, as a file appears under its
name only when it is complete. Spec: docs/spec/trust.md#ledger.
"""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from chain.errors import Environment, Invalid, NotFound
from chain.ids import DID_ODF, DatasetId
from chain.multihash import Multihash
from chain.store import durable
from chain.store.base import Step, no_step
from chain.store.files import disk
from odfd.trust.evidence import bundle
from odfd.trust.evidence.bundle import BundleManifest

SUFFIX: Final = ".odfe"
_DRAFT: Final = ".part"


class BundleQuota(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of the store."""

    total: int = 1 << 30
    """Bytes of all bundles; while one is written it counts in addition."""
    one: int = 512 << 20
    """Bytes of the bundles about one dataset, so that none pushes out the evidence about all others."""
    count: int = 4
    """Number of bundles about one dataset."""


class StoredBundle(msgspec.Struct, frozen=True, kw_only=True):
    """A bundle in the store."""

    name: Multihash
    dataset: DatasetId | None
    """The dataset whose owner it accuses; ``None`` for bundles from before this was stored."""
    size: int
    at: int
    """The time when it was stored, in any unit: only the order counts."""
    refuted: bool = False
    """Whether a re-run here showed that its accusation is wrong."""


def leaving(kept: Sequence[StoredBundle], dataset: DatasetId, size: int, room: BundleQuota) -> list[Multihash]:
    """Returns the bundles to delete for a new one of ``size`` bytes about ``dataset``,
    which must fit into an empty store."""
    order = sorted(kept, key=lambda each: (not each.refuted, each.at, each.name))
    gone = _over([each for each in order if each.dataset == dataset], room.one - size, room.count - 1)
    rest = [each for each in order if each.name not in gone]
    return [*gone, *_over(rest, room.total - size, len(rest))]


def _over(order: Sequence[StoredBundle], most: int, count: int) -> dict[Multihash, None]:
    """Returns the first bundles, without which at most ``count`` of together ``most`` bytes are left."""
    gone: dict[Multihash, None] = {}
    total = sum(each.size for each in order)
    for each in order:
        if len(order) - len(gone) <= count and total <= most:
            break
        gone[each.name] = None
        total -= each.size
    return gone


class BundleStore:
    """Stores the bundles of one node. ``refuted`` tells which of these bundles were found untrue here."""

    def __init__(
        self,
        folder: Path,
        room: BundleQuota = BundleQuota(),  # noqa: B008  it is frozen
        refuted: Callable[[Collection[Multihash]], Collection[Multihash]] = lambda _: (),
        step: Step = no_step,
    ) -> None:
        self._folder = folder
        self._room = room
        self._refuted = refuted
        self._step = step
        self._turn = threading.RLock()
        """Held while a bundle is written or deleted, and while room is made."""
        for draft in folder.glob(f"*{_DRAFT}"):
            draft.unlink()  # of one that was killed
        self._paths = dict(_files(folder))

    def keep(self, manifest: BundleManifest, sources: Mapping[Multihash, bytes | Path]) -> Multihash:
        """Writes a bundle durably; returns its id.

        Raises Invalid if an object is damaged or no writer signed the accused head, Environment if the disk fails or
        the bundle does not fit into the store.
        """
        name = manifest.id
        if self.has(name):
            return name
        dataset = manifest.accused()[0].dataset
        target = self._folder / f"{name}.{dataset.multibase}{SUFFIX}"
        with self._turn, disk(target):
            draft = target.with_suffix(f".{os.getpid()}{_DRAFT}")
            try:
                with draft.open("wb") as file:
                    bundle.write(manifest, lambda each: _open(sources[each.hash]), file)
                    file.flush()
                    durable.sync(file.fileno())
                self._step("shelf-written")
                # Before the new one is visible: a crash in between leaves fewer and never too many
                # (test_never_over_budget).
                self._make_room(dataset, draft.stat().st_size)
                self._step("shelf-room")
                durable.rename(draft, target)
            finally:
                draft.unlink(missing_ok=True)
            self._paths[name] = target
        return name

    def has(self, name: Multihash) -> bool:
        path = self._paths.get(name)
        return path is not None and path.is_file()

    def path(self, name: Multihash) -> Path:
        """Returns the path of a bundle's file. Raises NotFound."""
        if not self.has(name):
            raise NotFound(
                f"no evidence {name.short} is kept here",
                rule="evidence",
                hint="odfctl trust show REF lists what is known; odfctl trust evidence ID --fetch asks connected peers",
            )
        return self._paths[name]

    def drop(self, name: Multihash) -> None:
        """Deletes a bundle, if it is here. Raises Environment."""
        with self._turn:
            path = self._paths.pop(name, None)
            if path is not None:
                with disk(path):
                    path.unlink(missing_ok=True)

    def _make_room(self, dataset: DatasetId, size: int) -> None:
        most = min(self._room.one, self._room.total)
        if size > most:
            raise Environment(
                f"the evidence takes {size:,} bytes, and of one dataset {most:,} are kept",
                rule="evidence-room",
                hint="its author can give you the file",
            )
        for name in leaving(self._all(), dataset, size, self._room):
            self.drop(name)

    def _all(self) -> list[StoredBundle]:
        found = [(name, path, path.stat()) for name, path in self._paths.items() if path.is_file()]
        refuted = frozenset(self._refuted([name for name, _, _ in found]))
        return [
            StoredBundle(
                name=name,
                dataset=_read_dataset(path),
                size=state.st_size,
                at=state.st_mtime_ns,
                refuted=name in refuted,
            )
            for name, path, state in found
        ]


def _files(folder: Path) -> Iterator[tuple[Multihash, Path]]:
    """Lists the stored bundles, without files of other names."""
    for path in folder.glob(f"*{SUFFIX}"):
        try:
            yield Multihash.parse(path.name.split(".")[0]), path
        except Invalid:
            continue


def _read_dataset(path: Path) -> DatasetId | None:
    _, dataset, *rest = path.name.split(".")
    try:
        return DatasetId.parse(DID_ODF + dataset) if rest else None
    except Invalid:
        return None


def _open(source: bytes | Path) -> BinaryIO:
    return io.BytesIO(source) if isinstance(source, bytes) else source.open("rb")

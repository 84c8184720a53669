"""Stores bundles of evidence: one file each, named by its id and the accused signer, within quotas.

A bundle is kept whole and apart from the stores its objects came from: evidence must outlive the dataset it is about.
There is room for so many of one dataset and for so many bytes; those that were found untrue here go first, then the
oldest. Made once per process; safe to use from any thread, for a file shows under its name only when it is whole. Spec:
docs/spec/trust.md#ledger.
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
from chain.store.base import Step, no_step
from chain.store.files import disk
from odfd.trust.evidence import bundle
from odfd.trust.evidence.bundle import Manifest
from odfd.trust.keys.journal import sync_folder

SUFFIX: Final = ".odfe"
_DRAFT: Final = ".part"


class BundleQuota(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of the store."""

    total: int = 1 << 30
    """Bytes of all bundles; an unfinished one comes on top while it is written."""
    one: int = 512 << 20
    """Bytes of those about one dataset: none pushes out the evidence about all others."""
    count: int = 4
    """Of those about one dataset."""


class StoredBundle(msgspec.Struct, frozen=True, kw_only=True):
    """A bundle that is kept."""

    name: Multihash
    dataset: DatasetId | None
    """The dataset whose owner it accuses; ``None`` for bundles from before this was stored."""
    size: int
    at: int
    """When it came, in any unit: only the order counts."""
    refuted: bool = False
    """Whether a re-run here showed that it accuses wrongly."""


def leaving(kept: Sequence[StoredBundle], dataset: DatasetId, size: int, room: BundleQuota) -> list[Multihash]:
    """Returns what goes when a bundle of ``size`` bytes about ``dataset`` comes; it must fit into an empty store."""
    gone: list[Multihash] = []
    order = sorted(kept, key=lambda each: (not each.refuted, each.at, each.name))
    alike = [each for each in order if each.dataset == dataset]
    while alike and (len(alike) >= room.count or size + sum(each.size for each in alike) > room.one):
        gone.append(alike.pop(0).name)
    rest = [each for each in order if each.name not in gone]
    while rest and size + sum(each.size for each in rest) > room.total:
        gone.append(rest.pop(0).name)
    return gone


class BundleStore:
    """The bundles of one node. ``refuted`` tells which of these bundles were found untrue here."""

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
        """One bundle at a time is written, makes room, or goes."""
        for draft in folder.glob(f"*{_DRAFT}"):
            draft.unlink()  # of one that was killed
        self._paths = dict(_files(folder))

    def keep(self, manifest: Manifest, sources: Mapping[Multihash, bytes | Path]) -> Multihash:
        """Write a bundle, durably; its id.

        Raises Invalid when an object is damaged or no writer signed what is accused, Environment: our disk, or there
        is no such room.
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
                    bundle.write(manifest, lambda each: _opened(sources[each.hash]), file)
                    file.flush()
                    os.fsync(file.fileno())
                self._step("shelf-written")
                self._make_room(dataset, draft.stat().st_size)
                self._step("shelf-room")
                draft.replace(target)
                sync_folder(self._folder)
            finally:
                draft.unlink(missing_ok=True)
            self._paths[name] = target
        return name

    def has(self, name: Multihash) -> bool:
        path = self._paths.get(name)
        return path is not None and path.is_file()

    def path(self, name: Multihash) -> Path:
        """The file of a bundle, by its id. Raises NotFound."""
        if not self.has(name):
            raise NotFound(
                f"no evidence {name.short} is kept here",
                rule="evidence",
                hint="odfctl trust show REF lists what is known; odfctl trust evidence ID --fetch asks connected peers",
            )
        return self._paths[name]

    def drop(self, name: Multihash) -> None:
        """Removes a bundle, if it is here. Raises Environment."""
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
                name=name, dataset=_accused(path), size=state.st_size, at=state.st_mtime_ns, refuted=name in refuted
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


def _accused(path: Path) -> DatasetId | None:
    _, dataset, *rest = path.name.split(".")
    try:
        return DatasetId.parse(DID_ODF + dataset) if rest else None
    except Invalid:
        return None


def _opened(source: bytes | Path) -> BinaryIO:
    return io.BytesIO(source) if isinstance(source, bytes) else source.open("rb")

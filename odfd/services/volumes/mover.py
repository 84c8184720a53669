"""Moves slices between the state directory and volumes, as policies of volumes say, while they are read.

Each slice is moved by itself: copied, read back and compared with its name, switched in one transaction, and its local
file is deleted when nobody may be reading it (``chain.store.volumes`` says what a crash leaves). Only new blocks are
looked at: the number of blocks of a dataset that were looked at is remembered while the process lives. Blocking; for
one thread at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import Final

import msgspec

from chain.errors import Environment, Fault, NotFound
from chain.ids import DatasetId
from chain.model.events import AddData, ExecuteTransform
from chain.multihash import Multihash
from chain.store.base import Step, no_step
from chain.store.objects import staged_in
from chain.store.volumes import VolumeEntry
from chain.walk import newest_first
from odfd.datasets.manifest import VOLUME
from odfd.resources.references import reference_key
from odfd.resources.resource import Resource
from odfd.services.volumes.manifest import policy_of, size_of
from odfd.services.volumes.volume_paths import damaged_fault
from odfd.services.volumes.volumes import OpenVolume, Volumes
from odfd.store.catalog import Catalog, DatasetEntry, Labels
from odfd.store.directory import StateDirectory

FULL: Final = "volume-full"
_DATA: Final = ("AddData", "ExecuteTransform")


class VolumeState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a volume after a round."""

    generation: int
    fault: Fault | None = None
    waiting: int = 0
    """Slices whose local file is here still, because somebody may be reading it."""
    remaining: int = 0
    """Copies in the volume that are to be deleted, and that somebody may be reading."""
    moved: int = 0
    returned: int = 0


class _Seen(msgspec.Struct, frozen=True):
    history: tuple[int, int]
    size: int


class VolumeMover:
    """Moves slices between the state directory of one node and its volumes."""

    def __init__(self, home: StateDirectory, volumes: Volumes, labels: Labels, step: Step = no_step) -> None:
        self._home, self._volumes, self._step, self._labels = home, volumes, step, labels
        self._objects, self._index = home.objects, home.objects.volumes
        self._seen: dict[tuple[str, DatasetId], _Seen] = {}
        """By volume and dataset: up to which block slices were moved there, or wait."""
        self._waiting: dict[str, dict[Multihash, bytes]] = {}
        """By volume: slices that are to be looked at again, with their dataset's did."""

    def round(self, at: int, volumes: Sequence[Resource], touched: Collection[DatasetId] | None) -> VolumeState:
        """Does all that is due for one of ``volumes``. ``touched``: the datasets to look at; ``None`` for all."""
        moved, returned, fault, resource = 0, 0, None, volumes[at]
        try:
            volume = self._volumes.claim(resource)
            self._clear(volume)
            wanted, others = self._sort(at, volumes, touched)
            returned = self._return(volume, others)
            for name, dataset in self._local(resource, wanted):
                if self._to_volume(volume, name, dataset):
                    moved += 1
            self._clear(volume)
        except Fault as found:
            fault = found
        return VolumeState(
            generation=resource.generation,
            fault=fault,
            waiting=len(self._waiting.get(resource.id, {})),
            remaining=self._index.usage(resource.id).remains,
            moved=moved,
            returned=returned,
        )

    def _sort(
        self, at: int, volumes: Sequence[Resource], touched: Collection[DatasetId] | None
    ) -> tuple[dict[bytes, DatasetEntry], set[bytes]]:
        """Returns the datasets whose slices belong there, by the bytes of their dids; and those whose slices do not.

        A dataset that names a volume belongs in it; otherwise it belongs in the first volume whose policy names it.
        """
        policies = [policy_of(volume.annotations) for volume in volumes[: at + 1]]
        wanted: dict[bytes, DatasetEntry] = {}
        others: set[bytes] = set()
        with self._home.database.read() as connection:
            catalog = Catalog(connection)
            found = map(catalog.find, touched) if touched is not None else catalog.chains()
            for entry in found:
                if entry is None:
                    continue
                named = _volume_of(catalog.resource_of(entry.id))
                facts = partial(catalog.facts, entry.id, self._labels)
                first = next((place for place, each in enumerate(policies) if each.means(entry.name, facts)), None)
                if named == volumes[at].id if named is not None else first == at:
                    wanted[bytes(entry.id)] = entry
                else:
                    others.add(bytes(entry.id))
        return wanted, others

    def _local(self, resource: Resource, wanted: dict[bytes, DatasetEntry]) -> Iterator[tuple[Multihash, bytes]]:
        """Yields slices that may have a local file. Blocks count as seen once all of them were taken."""
        waiting = self._waiting.setdefault(resource.id, {})
        for name, key in list(waiting.items()):
            yield name, key
        for key, entry in wanted.items():
            chain = self._home.chains.chain(entry.id)
            snapshot = chain.snapshot()
            if snapshot is None:
                continue
            seen = self._seen.get((resource.id, entry.id))
            start = seen.size if seen is not None and seen.history == snapshot.history else 0
            for block in newest_first(chain, _DATA, snapshot.head.size) if start < snapshot.head.size else ():
                if block.sequence_number < start:
                    break
                if isinstance(block.event, AddData | ExecuteTransform) and block.event.new_data is not None:
                    name = block.event.new_data.physical_hash
                    if self._objects.local_file(name) is not None:
                        waiting[name] = key
                        yield name, key
            # Only after the caller took all of them: a volume that fails half-way is read again from ``start``.
            self._seen[resource.id, entry.id] = _Seen(snapshot.history, snapshot.head.size)

    def _to_volume(self, volume: OpenVolume, name: Multihash, dataset: bytes) -> bool:
        """Moves a slice to the volume; returns whether only the volume has it now.

        A local file beside a whole copy is not copied again.
        """
        local = self._objects.local_file(name)
        if local is not None:
            entry = self._index.find(name)
            if entry is None or entry.volume != volume.resource.id or not volume.place.is_whole(name):
                size = local.stat().st_size
                self._check_room(volume, size)
                if entry is not None and entry.volume != volume.resource.id:
                    self._index.leave(name)
                # First: after a crash ``_clear`` finds the unfinished copy by this row.
                self._index.begin(name, volume.resource.id)
                self._step("volume-begun")
                try:
                    volume.place.put(name, local)
                except NotFound:
                    if self._objects.local_file(name) is None:  # its garbage was collected meanwhile
                        self._waiting[volume.resource.id].pop(name, None)
                        return False
                    raise
                self._volumes.cache(volume.resource).drop(name)
                self._step("volume-copied")
                self._index.switch(name, VolumeEntry(volume.resource.id, size), dataset)
                self._step("volume-switched")
            # A query may have it open, or a process may be given its path: it is looked at again in the next round.
            if not self._objects.drop_local(name):
                return False
            self._step("volume-alone")
        self._waiting[volume.resource.id].pop(name, None)
        return local is not None

    def _check_room(self, volume: OpenVolume, size: int) -> None:
        capacity = volume.spec.capacity
        if capacity is None or capacity.storage is None:
            return
        most, used = size_of(capacity.storage), self._index.usage(volume.resource.id).bytes
        if used + size > most:
            raise Environment(
                f"volume {volume.resource.name} is full: {used:,} of {most:,} bytes are used, and a slice has {size:,}",
                rule=FULL,
                hint="raise spec.capacity.storage, or name fewer datasets in volumePolicy; new slices stay here",
            )

    def _return(self, volume: OpenVolume, others: Collection[bytes]) -> int:
        """Brings back slices that no longer belong there. Those of no dataset are left to the garbage collection."""
        returned = 0
        for key in self._index.datasets(volume.resource.id):
            if key in others:
                self._forget(volume.resource.id, key)
                for name in self._index.of(volume.resource.id, key):
                    self._home_again(volume, name)
                    returned += 1
        return returned

    def _home_again(self, volume: OpenVolume, name: Multihash) -> None:
        if self._objects.local_file(name) is None:
            with staged_in(self._objects) as staged:
                volume.place.fetch(name, staged)
                if self._objects.add_file(staged) != name:
                    raise damaged_fault(volume.resource.name, name)
            # ``add_file`` protects it as fresh until a block names it, and blocks do so already.
            self._objects.holds.named((name,))
            self._step("volume-returned")
        self._index.leave(name)
        self._step("volume-left")

    def _forget(self, volume: str, key: bytes) -> None:
        """Forgets which blocks of a dataset were looked at, as its slices come back and may go there again."""
        waiting = self._waiting.get(volume, {})
        for name in [name for name, dataset in waiting.items() if dataset == key]:
            del waiting[name]
        for seen in [each for each in self._seen if each[0] == volume and bytes(each[1]) == key]:
            del self._seen[seen]

    def _clear(self, volume: OpenVolume) -> None:
        """Deletes copies that nothing needs, except files that somebody may be reading."""
        for name in self._index.remains(volume.resource.id):
            with self._objects.holds.unless_open(name) as free:
                is_free = free  # later readers get the local file
            if not is_free:
                continue
            volume.place.delete(name)
            self._volumes.cache(volume.resource).drop(name)
            self._index.forget(volume.resource.id, name)
            self._step("volume-cleared")


def _volume_of(dataset: Resource | None) -> str | None:
    """Returns the id of the volume that a dataset names; empty for one that is not here, ``None`` if it names none."""
    if dataset is None or not dataset.spec or not dataset.spec.get("volume"):
        return None
    handle = dataset.references.get(reference_key(dataset.spec["volume"], VOLUME))
    return "" if handle is None else handle.id

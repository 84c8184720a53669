"""Opens the declared volumes of a node, and reads objects that lie in them. Blocking; safe to use from many threads.

A folder is read in place. An object in a bucket is fetched once, compared with its name, and kept in a bounded cache.
Readers do not wait for each other's fetches: two that ask at the same time fetch twice.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from chain.errors import Environment, NotFound
from chain.multihash import Multihash
from chain.store.files import make_folder
from chain.store.volumes import AWAY, VolumeEntry
from odfd.repositories.bucket import open_bucket
from odfd.resources.references import reference_key
from odfd.resources.resource import Resource
from odfd.resources.sets import binding
from odfd.resources.store import ResourceStore
from odfd.runtime.buckets import KEYS
from odfd.services.volumes.cache import VolumeCache
from odfd.services.volumes.manifest import TYPE, PersistentVolumeSpec, VolumeKind, bucket_of, policy_of
from odfd.services.volumes.volume_paths import BucketPlace, VolumeFolder, VolumePlace
from odfd.store.directory import VOLUMES, StateDirectory

_CHECK_SECONDS: Final = 5.0
"""Seconds for which a declaration that was read counts as current."""


class OpenVolume(NamedTuple):
    """A declared volume that is open."""

    resource: Resource
    spec: PersistentVolumeSpec
    place: VolumePlace


class Volumes:
    """Opens the volumes of one node, and keeps their caches."""

    def __init__(self, home: StateDirectory, now: Callable[[], float] = time.monotonic) -> None:
        self._home, self._now = home, now
        self._lock = threading.Lock()
        self._claiming = threading.Lock()
        """Held while a place is marked: who asks in between would find a draft of the mark, as of another's."""
        self._opened: dict[str, tuple[object, float, OpenVolume]] = {}
        self._caches: dict[str, VolumeCache] = {}
        self.fetched = 0
        """Bytes fetched from buckets."""
        home.objects.open_volume = self.path

    def all(self) -> list[Resource]:
        """Lists the declared volumes by name."""
        with self._home.database.read() as connection:
            return sorted(ResourceStore(connection).all(TYPE), key=lambda each: each.name.casefold())

    def path(self, entry: VolumeEntry, name: Multihash) -> Path:
        """Returns a readable file of an object.

        Raises NotFound, ObjectDamaged; Environment if the volume cannot be reached.
        """
        volume = self._find_known(entry.volume)
        if (file := volume.place.file(name)) is not None:
            return file
        cache = self.cache(volume.resource)
        if (kept := cache.find(name)) is not None:
            return kept
        part = cache.part()
        try:
            volume.place.fetch(name, part)
            self.fetched += entry.size
            return cache.keep(name, part, entry.size)
        finally:
            # ``keep`` has moved it, unless the bytes did not have their hash or the disk is full.
            part.unlink(missing_ok=True)

    def open(self, resource: Resource) -> OpenVolume:
        """Opens a volume as it is declared now. Raises Environment, NotFound, Invalid."""
        spec = msgspec.convert(resource.spec, PersistentVolumeSpec)
        credentials = self._credentials(resource, spec)
        # With the credentials: a SecretSet can change without a new generation of the volume.
        said = (resource.name, resource.spec, credentials)
        with self._lock:
            opened = self._opened.get(resource.id)
        if opened is not None and opened[0] == said:
            volume = opened[2]._replace(resource=resource)
        elif spec.kind is VolumeKind.HOST_PATH:
            volume = OpenVolume(resource, spec, VolumeFolder(resource.name, Path(spec.path or "")))
        else:
            bucket = open_bucket(f"volume {resource.name}", bucket_of(spec), credentials)
            volume = OpenVolume(resource, spec, BucketPlace(resource.name, bucket))
        with self._lock:
            self._opened[resource.id] = (said, self._now(), volume)
        return volume

    def claim(self, resource: Resource) -> OpenVolume:
        """Opens a volume and asks its place whether it is there and its own. Raises Environment, NotFound, Invalid.

        Marks the place of a new volume, then writes its row: after a crash in between it finds its own mark.
        """
        volume, index = self.open(resource), self._home.objects.volumes
        place = volume.spec.place()
        with self._claiming:
            is_claimed = index.is_claimed(resource.id, place)
            volume.place.claim(resource.id, is_new=not is_claimed)
            if not is_claimed:
                self._leave(resource, index.place_of(resource.id))
                index.claim(resource.id, place)
        return volume

    def _leave(self, resource: Resource, former: str | None) -> None:
        """Deletes the mark in the folder where an empty volume was before, unless that is away."""
        if former is not None and former.startswith("/"):
            with contextlib.suppress(Environment):
                VolumeFolder(resource.name, Path(former)).release(resource.id)

    def release(self, resource: Resource) -> None:
        """Gives up the place and the cache of a volume that is deleted. Raises Environment if its disk is away."""
        volume, index = self.open(resource), self._home.objects.volumes
        # The mark stays while data lies there, so that no other node takes the place for its own.
        is_empty = not index.usage(resource.id).objects
        if is_empty and index.is_claimed(resource.id, volume.spec.place()):
            volume.place.check_is_there(resource.id)
        # Before the mark goes: after a crash in between, a place without a mark is not taken for a disk that is away.
        index.unclaim(resource.id)
        if is_empty:
            volume.place.release(resource.id)
        with self._lock:
            self._opened.pop(resource.id, None)
            self._caches.pop(resource.id, None)
        shutil.rmtree(self._home.folder(VOLUMES) / resource.id, ignore_errors=True)

    def cache(self, resource: Resource) -> VolumeCache:
        """Returns the cache of a volume, with the size that its policy states now."""
        with self._lock:
            cache = self._caches.get(resource.id)
            if cache is None:
                make_folder(self._home.folder(VOLUMES))
                folder = self._home.folder(VOLUMES) / resource.id
                cache = VolumeCache(folder, 0, self._home.objects.holds.is_held, self._now)
                self._caches[resource.id] = cache
            cache.limit = policy_of(resource.annotations).cache_bytes
            return cache

    def cached_bytes(self) -> int:
        """Returns the bytes of all caches."""
        with self._lock:
            caches = list(self._caches.values())
        return sum(cache.bytes for cache in caches)

    def _find_known(self, volume: str) -> OpenVolume:
        """Returns a volume as it was declared at most a moment ago.

        So many reads of objects do not each read the declaration.
        """
        with self._lock:
            opened = self._opened.get(volume)
        if opened is not None and self._now() - opened[1] < _CHECK_SECONDS:
            return opened[2]
        with self._home.database.read() as connection:
            resource = ResourceStore(connection).get(volume)
        if resource is None:
            raise Environment(
                f"the volume {volume} that holds data is not declared any more", rule=AWAY, hint="apply it again"
            )
        return self.open(resource)

    def _credentials(self, resource: Resource, spec: PersistentVolumeSpec) -> dict[str, str]:
        """Returns the keys of a bucket; none for a public one. No message shows a value. Raises NotFound."""
        if spec.credentials is None:
            return {}
        found = {}
        for key, text in zip(KEYS, (spec.credentials.access_key, spec.credentials.secret_key), strict=False):
            if text is None:
                return {}
            handle = resource.references.get(reference_key(text, "SecretSet"))
            with self._home.database.read() as connection:
                held = None if handle is None else ResourceStore(connection).get(handle.id)
            part = text.partition("#")[2]
            if held is None or part not in held.spec["secrets"]:
                message = f"volume {resource.name}: {text} is not here"
                raise NotFound(message, rule="volume-credentials", hint="apply the SecretSet, and the volume again")
            sealed = held.spec["secrets"][part]["value"]
            found[key] = self._home.secrets.open(sealed, (binding(held.id, part),)).reveal()
        return found

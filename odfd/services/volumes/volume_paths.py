"""Reads and writes objects in a volume: a folder of this machine, or a bucket.

A folder has a mark with the id of its volume. Without the mark nothing is read or written there: an empty folder is
what is left of a disk that is not mounted, and writing would fill the disk below it. A bucket has the same mark, so
that two nodes never share a prefix, where one would delete what the other needs. Blocking; safe to use from many
threads.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

from chain.errors import Environment, Fault, NotFound, Refused, Remote
from chain.multihash import Multihash
from chain.store import durable
from chain.store.files import ObjectDamaged, check_file, disk
from chain.store.volumes import AWAY
from odfd.repositories.bucket import Bucket
from odfd.runtime.buckets import CHUNK
from odfd.services.volumes.mount_check import PATIENCE, MountCheck
from p2p.ports import FileMissing

MARK: Final = ".odfd-volume"


class VolumePlace(Protocol):
    """The place of an open volume. All methods raise Environment with the volume's name if it cannot be reached."""

    def claim(self, volume: str, *, is_new: bool) -> None:
        """Checks the mark; writes it if ``is_new`` and there is none."""

    def check_is_there(self, volume: str) -> None:
        """Raises Environment if the mark of a volume that began here is not seen, and may be on a disk that is away."""

    def release(self, volume: str) -> None:
        """Deletes the mark of this volume, if it is there, so that another one may use the place."""

    def put(self, name: Multihash, source: Path) -> None:
        """Writes a copy and reads it back. Raises ObjectDamaged if that is not what was written."""

    def is_whole(self, name: Multihash) -> bool:
        """Whether the copy is there and matches its name."""

    def file(self, name: Multihash) -> Path | None:
        """Returns the copy's own file, unchecked; ``None`` if the place has no files. Raises NotFound."""

    def fetch(self, name: Multihash, target: Path) -> None:
        """Writes the copy to the new file ``target``. Raises NotFound, ObjectDamaged."""

    def delete(self, name: Multihash) -> None:
        """Deletes the copy; does nothing if there is none."""


class VolumeFolder:
    """A folder of this machine as the place of a volume."""

    def __init__(self, volume: str, root: Path, patience: float = PATIENCE) -> None:
        """``volume``: its name, for messages. ``patience``: seconds that a mount has to answer."""
        self._volume, self._root = volume, root
        self._is_marked = MountCheck((root / MARK).is_file, patience)

    def claim(self, volume: str, *, is_new: bool) -> None:
        with self._use():
            mark = self._root / MARK
            if not self._is_marked():
                if not is_new:
                    raise away(self._volume, f"{self._root} has no mark of it: check that its disk is mounted")
                self._begin(mark, volume)
            _check_mark(self._volume, mark.read_text(), volume, str(mark))

    def _begin(self, mark: Path, volume: str) -> None:
        """Writes the mark as a whole or not at all; one that a crash left unfinished is written anew."""
        durable.make_folder(self._root, 0o700)
        part = mark.with_name(f"{mark.name}.part")
        if any(path != part for path in self._root.iterdir()):
            raise _to_taken(self._volume, f"{self._root} is not empty")
        with durable.writing(mark, draft=part) as file:
            file.write(volume.encode())

    def check_is_there(self, volume: str) -> None:
        with self._use():
            if not self._is_marked():
                fault = away(self._volume, f"{self._root} has no mark of it: check that its disk is mounted")
                fault.hint = f"mount it; if it is gone for good: echo {volume} > {self._root / MARK}"
                raise fault

    def release(self, volume: str) -> None:
        with self._use():
            mark = self._root / MARK
            if self._is_marked() and mark.read_text().strip() == volume:
                durable.remove(mark)

    def put(self, name: Multihash, source: Path) -> None:
        target = self._place(name)
        part = target.with_name(f"{target.name}.part")
        with self._use():
            self._check()
            durable.make_folder(target.parent, 0o700)
            with source.open("rb") as read, durable.writing(target, 0o444, part) as written:
                shutil.copyfileobj(read, written, CHUNK)
                written.flush()
                check_file(part, name)

    def is_whole(self, name: Multihash) -> bool:
        with self._use():
            self._check()
            try:
                check_file(self._place(name), name)
            except (ObjectDamaged, NotFound):
                return False
        return True

    def file(self, name: Multihash) -> Path | None:
        with self._use():
            self._check()
            if not (place := self._place(name)).is_file():
                raise NotFound(f"object {name.short} is not in volume {self._volume}", rule="object-unknown")
            return place

    def fetch(self, name: Multihash, target: Path) -> None:
        source = self.file(name)
        assert source is not None
        with disk(target):
            shutil.copyfile(source, target)
            check_file(target, name)

    def delete(self, name: Multihash) -> None:
        with self._use():
            self._check()
            place = self._place(name)
            for each in (place, place.with_name(f"{place.name}.part")):
                each.unlink(missing_ok=True)

    def _check(self) -> None:
        if not self._is_marked():
            raise away(self._volume, f"{self._root} has no mark of it: check that its disk is mounted")

    def _place(self, name: Multihash) -> Path:
        return self._root / f"{name.digest[0]:02x}" / str(name)

    @contextmanager
    def _use(self) -> Iterator[None]:
        try:
            yield
        except TimeoutError as error:
            raise away(self._volume, f"{self._root} does not answer: check its server") from error
        except OSError as error:
            raise away(self._volume, f"{error.filename or self._root}: {error.strerror}") from error


class BucketPlace:
    """A prefix of a bucket as the place of a volume."""

    def __init__(self, volume: str, bucket: Bucket) -> None:
        self._volume, self._bucket = volume, bucket

    def claim(self, volume: str, *, is_new: bool) -> None:
        with self._ask():
            found = self._bucket.get(MARK, 200)
            if found is None:
                if not is_new:
                    raise away(self._volume, "its bucket has no mark of it any more")
                self._bucket.put_if(MARK, volume.encode(), None)
                found = self._bucket.get(MARK, 200)
            said = "" if found is None else found.content.decode(errors="replace")
            _check_mark(self._volume, said, volume, f"{MARK} in its bucket")

    def check_is_there(self, volume: str) -> None:
        """Does nothing: a bucket without the mark has none."""

    def release(self, volume: str) -> None:
        with self._ask(), contextlib.suppress(FileMissing):
            found = self._bucket.get(MARK, 200)
            if found is not None and found.content.decode(errors="replace").strip() == volume:
                self._bucket.delete(MARK)

    def put(self, name: Multihash, source: Path) -> None:
        with self._ask(), disk(source), source.open("rb") as file:
            self._bucket.put(str(name), iter(lambda: file.read(CHUNK), b""))
        if not self.is_whole(name):
            raise damaged_fault(self._volume, name)

    def is_whole(self, name: Multihash) -> bool:
        try:
            with self._ask():
                hashed = hashlib.sha3_256()
                for part in self._bucket.parts(str(name), 0):
                    hashed.update(part)
                return hashed.digest() == name.digest
        except NotFound:
            return False

    def file(self, name: Multihash) -> Path | None:  # noqa: ARG002  as all places
        return None

    def fetch(self, name: Multihash, target: Path) -> None:
        with self._ask(), disk(target), target.open("wb") as file:
            for part in self._bucket.parts(str(name), 0):
                file.write(part)
        with disk(target), target.open("rb") as file:
            if Multihash.sha3_256_of(file) != name:
                raise damaged_fault(self._volume, name)

    def delete(self, name: Multihash) -> None:
        with self._ask(), contextlib.suppress(FileMissing):
            self._bucket.delete(str(name))

    @contextmanager
    def _ask(self) -> Iterator[None]:
        try:
            yield
        except FileMissing as fault:
            raise NotFound(f"an object is not in volume {self._volume}", rule="object-unknown") from fault
        except (Remote, Refused) as fault:
            raise away(self._volume, fault.message) from fault


def away(volume: str, why: str) -> Environment:
    """Returns the fault for a volume that cannot be used now."""
    hint = f"odfctl get volume {volume}; data elsewhere is read as before"
    return Environment(f"volume {volume} is away: {why}", rule=AWAY, hint=hint)


def damaged_fault(volume: str, name: Multihash) -> ObjectDamaged:
    """Returns the fault for a copy that does not match its name."""
    fault = ObjectDamaged(name)
    fault.place = f"volume {volume}"
    return fault


def _to_taken(volume: str, why: str) -> Fault:
    hint = "name an empty folder or another prefix: a volume is of one node, and holds nothing else"
    return Refused(f"volume {volume} cannot begin there: {why}", rule="volume-taken", hint=hint)


def _check_mark(name: str, found: str, volume: str, mark: str) -> None:
    if found.strip() != volume:
        raise Refused(
            f"volume {name} cannot begin there: it is another volume's already, as {mark} says",
            rule="volume-taken",
            hint="name an empty folder or another prefix; if no node has that volume any more, delete that file",
        )

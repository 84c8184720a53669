"""Caches the current rows of datasets at earlier cuts on disk, so that a query folds only later blocks.

A fold is a file in the folder of its dataset. Its name states the cut (number of blocks, and the hash of the last), a
key of how it was folded, the number of rows, and the hash of its bytes. So it fits one history and one way to fold, and
its hash is checked before it is read. Folds that were unused for longest are deleted to make room. Used from worker
threads.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from chain.errors import Environment, Invalid, Refused
from chain.ids import DatasetId
from chain.multihash import Multihash
from engines.query.views import SliceView

_VERSION: Final = 2
"""Version of a fold's contents: since 2 it is a database of DuckDB, before it was a Parquet file."""
_PIECE: Final = 1 << 20
_PART: Final = ".part"


class FoldFile(NamedTuple):
    """The parts of a fold's file name."""

    size: int
    """Number of blocks that it covers."""
    block: str
    """Hash of the last of them."""
    way: str
    rows: int
    content: str

    @classmethod
    def parse(cls, name: str) -> FoldFile | None:
        parts = name.split(".")
        if len(parts) != len(cls._fields) or not (parts[0].isdecimal() and parts[3].isdecimal()):
            return None
        return cls(int(parts[0]), parts[1], parts[2], int(parts[3]), parts[4])

    @property
    def name(self) -> str:
        return ".".join(map(str, self))


class KeptFold(NamedTuple):
    """A fold that was found, with a hash that matches its name."""

    file: FoldFile
    path: Path


class FoldStore:
    """The folds of one node. ``most``: bytes of all folds; 0: none is kept."""

    def __init__(self, folder: Path, most: int) -> None:
        self.most = most
        self._folder = folder
        self._sound: dict[str, tuple[int, int, int]] = {}

    def find(
        self, dataset: DatasetId, view: SliceView, size: int, is_in: Callable[[int, str], bool]
    ) -> KeptFold | None:
        """Returns the newest fold within the first ``size`` blocks. ``is_in(number, hash)``: whether
        the history has this block."""
        way = way_of(view)
        for file in sorted(_files(self._folder / dataset.multibase), reverse=True):
            if file.way == way and 0 < file.size <= size and is_in(file.size - 1, file.block):
                path = self._folder / dataset.multibase / file.name
                if self._is_sound(path, file):
                    return KeptFold(file, path)
        return None

    def keep(self, dataset: DatasetId, made: Path, view: SliceView, cut: tuple[int, Multihash], rows: int) -> None:
        """Stores a fold that a process made, as a copy, since the process may still write to its file.
        Raises Refused, Environment."""
        size, block = cut
        home = self._folder / dataset.multibase
        try:
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
            part = home / f"{os.urandom(8).hex()}{_PART}"
            try:
                content = copy_hashed(made, part, self.most)
                part.rename(home / FoldFile(size, str(block), way_of(view), rows, content).name)
            finally:
                part.unlink(missing_ok=True)
        except OSError as error:
            raise Environment(f"cannot keep a fold in {home}: {error.strerror}", rule="query-fold") from error
        self._make_room()

    def collect(self, is_good: Callable[[str, int, str], bool], *, dry_run: bool) -> tuple[int, int]:
        """Deletes folds unless ``is_good`` (folder of the dataset, size, block); returns their number and bytes."""
        number = freed = 0
        for path in self._all():
            file = FoldFile.parse(path.name)
            if file is not None and is_good(path.parent.name, file.size, file.block):
                continue
            with contextlib.suppress(FileNotFoundError):
                number, freed = number + 1, freed + path.stat().st_size
                if not dry_run:
                    path.unlink()
        return number, freed

    def _is_sound(self, path: Path, file: FoldFile) -> bool:
        """Whether a fold has its hash; hashes it the first time and when it changed. Deletes a damaged one,
        as it can be made again."""
        try:
            found = path.stat()
            # Not the mtime: ``utime`` below sets that, and whoever damages a file can set it too.
            mark = (found.st_ino, found.st_size, found.st_ctime_ns)
            if self._sound.get(path.name) != mark:
                with path.open("rb") as source:
                    if hashlib.file_digest(source, "sha256").hexdigest() != file.content:
                        path.unlink(missing_ok=True)
                        return False
            # The time of the last use, by which the oldest folds are deleted when there is no room.
            os.utime(path)
            found = path.stat()
            self._sound[path.name] = (found.st_ino, found.st_size, found.st_ctime_ns)
        except OSError:
            return False
        return True

    def _make_room(self) -> None:
        found = sorted((status.st_mtime_ns, status.st_size, path) for path, status in _stats(self._all()))
        over = sum(size for _, size, _ in found) - self.most
        for _, size, path in found:
            if over <= 0:
                return
            path.unlink(missing_ok=True)
            over -= size

    def _all(self) -> Iterator[Path]:
        if self._folder.is_dir():
            for home in list(self._folder.iterdir()):
                yield from list(home.iterdir())


def forget(folder: Path, dataset: DatasetId) -> None:
    """Deletes all folds of a dataset."""
    shutil.rmtree(folder / dataset.multibase, ignore_errors=True)


def way_of(view: SliceView) -> str:
    """Returns a key of how a view is folded, which differs by schema and key."""
    encoded = msgspec.json.encode((_VERSION, view.fold, view.key, view.system, view.schema))
    return hashlib.sha256(encoded).hexdigest()[:32]


def _files(home: Path) -> list[FoldFile]:
    try:
        return [file for path in home.iterdir() if (file := FoldFile.parse(path.name)) is not None]
    except FileNotFoundError:
        return []


def _stats(paths: Iterator[Path]) -> Iterator[tuple[Path, os.stat_result]]:
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            yield path, path.stat()


def copy_hashed(made: Path, target: Path, most: int) -> str:
    """Copies a file and returns its hash. Follows no link, since an untrusted process made the file."""
    digest = hashlib.sha256()
    # O_NONBLOCK: opening a FIFO for reading would wait for a writer.
    source = os.open(made, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(source, "rb") as reading:
        if not stat.S_ISREG(os.fstat(source).st_mode):
            raise Invalid("what a query process made is no file", rule="query-fold")
        with target.open("xb") as writing:
            while piece := reading.read(_PIECE):
                digest.update(piece)
                writing.write(piece)
                if writing.tell() > most:
                    raise Refused(
                        f"what a query made has more than {most:,} bytes", rule="query-fold", hint="ask for less"
                    )
    return digest.hexdigest()

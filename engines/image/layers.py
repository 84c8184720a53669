"""Writes a layer as a tar that depends on its files alone: sorted, with one time, one owner and plain modes."""

from __future__ import annotations

import hashlib
import io
import stat
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Final

from engines.image.oci import LAYER, Descriptor
from engines.image.tree import Entry

_CHUNK: Final = 1 << 20
SKIPPED: Final = frozenset({"__pycache__", ".lock"})
"""What running leaves behind."""


@dataclass(frozen=True, slots=True)
class Item:
    """Something to put in: bytes, a file of ours, or where a link points."""

    path: PurePosixPath
    """From the root, without a leading slash."""
    source: bytes | Path | str
    executable: bool = False


def files_below(folder: Path, place: str, skip: frozenset[str] = SKIPPED) -> Iterator[Item]:
    """Every file and link below a folder, at the same place below ``place``."""
    for path in folder.rglob("*"):
        inside = path.relative_to(folder)
        if skip & set(inside.parts) or (path.is_dir() and not path.is_symlink()):
            continue
        if path.is_symlink():
            yield Item(PurePosixPath(place, *inside.parts), str(path.readlink()))
        else:
            yield Item(PurePosixPath(place, *inside.parts), path, bool(path.stat().st_mode & stat.S_IXUSR))


def write_layer(
    blobs: Path, items: Iterable[Item], folders: Iterable[str], epoch: int, known: frozenset[str]
) -> tuple[Descriptor, list[Entry]]:
    """The layer under its digest, and the entries that it adds.

    ``folders``: empty ones; ``epoch``: seconds for all times; ``known``: folders of earlier layers, left out here.
    """
    by_path = {item.path: item for item in items}
    parents = {parent for path in by_path for parent in path.parents} | set(map(PurePosixPath, folders))
    parents |= {above for folder in parents for above in folder.parents}
    made = sorted(folder for folder in parents - {PurePosixPath(".")} if str(folder) not in known)
    entries = [Entry(str(folder), "d", 0o755, "") for folder in made]
    blobs.mkdir(parents=True, exist_ok=True)
    staged = blobs / "staged"
    with staged.open("wb") as file:
        hashed = _Hashing(file)
        with tarfile.open(fileobj=hashed, mode="w|", format=tarfile.PAX_FORMAT) as tar:
            for folder in made:
                tar.addfile(_info(str(folder), tarfile.DIRTYPE, 0o755, epoch))
            for path in sorted(by_path):
                entries.append(_add(tar, by_path[path], epoch))
    digest = hashed.digest
    staged.replace(blobs / digest.removeprefix("sha256:"))
    return Descriptor(media_type=LAYER, digest=digest, size=hashed.size), entries


def _add(tar: tarfile.TarFile, item: Item, epoch: int) -> Entry:
    path = str(item.path)
    if isinstance(item.source, str):
        info = _info(path, tarfile.SYMTYPE, 0o777, epoch)
        info.linkname = item.source
        tar.addfile(info)
        return Entry(path, "l", 0o777, item.source)
    mode = 0o755 if item.executable else 0o644
    info = _info(path, tarfile.REGTYPE, mode, epoch)
    if isinstance(item.source, bytes):
        info.size = len(item.source)
        tar.addfile(info, io.BytesIO(item.source))
        return Entry(path, "f", mode, hashlib.sha256(item.source).hexdigest())
    info.size = item.source.stat().st_size
    with item.source.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        file.seek(0)
        tar.addfile(info, file)
    return Entry(path, "f", mode, digest)


def _info(path: str, kind: bytes, mode: int, epoch: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(path)
    info.type, info.mode, info.mtime = kind, mode, epoch
    return info


class _Hashing(io.RawIOBase):
    """Counts and hashes what passes into a file."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]  # tarfile gives bytes
        self._hash.update(data)
        self.size += len(data)
        return self._file.write(data)

    @property
    def digest(self) -> str:
        return "sha256:" + self._hash.hexdigest()

"""Lists the contents of a root file system in a form that is hashed: path, kind, mode, and content by digest.

The listing's digest is an annotation of the image's manifest, so pinning the manifest pins every file, and an unpacked
image can be checked at each start without its layers.
"""

from __future__ import annotations

import hashlib
import io
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from chain.errors import Environment
from engines.identity import FileDigests

WRITTEN: Final = {
    "/etc/passwd": b"odf:x:1000:1000::/tmp:/bin/sh\n",
    "/etc/group": b"odf:x:1000:\n",
    "/etc/hosts": b"127.0.0.1 localhost\n::1 localhost\n",
    "/etc/nsswitch.conf": b"passwd: files\ngroup: files\nhosts: files\n",
}
"""Files that are added: without an entry for its user Hadoop finds no home and fails; without hosts
``localhost`` is unknown."""


class TreeEntry(msgspec.Struct, frozen=True, array_like=True, order=True):
    """One file, folder or link; ``content``: hex sha256 of a file, the text of a link, empty for a folder."""

    path: str
    """Path from the root, without a slash at either end."""
    kind: str
    """``f`` for a file, ``d`` for a folder, ``l`` for a link."""
    mode: int
    content: str


def encode(entries: Iterable[TreeEntry]) -> bytes:
    """Encodes a listing canonically: sorted, one JSON array a line."""
    return b"\n".join(msgspec.json.encode(entry) for entry in sorted(entries))


def digest_of(raw: bytes) -> str:
    return "sha256:" + hashlib.sha256(raw).hexdigest()


def check(root: Path, listing: bytes, digest: str, digests: FileDigests) -> None:
    """Compares a folder with the listing whose digest is ``digest``, and hashes files that look changed. Raises
    Environment.

    A daemon does this at its start for thousands of files, and never gives back the memory that it takes. So entries
    are read one by one, paths are texts, as ``pathlib`` interns each part of each, and what is too much is counted.
    """
    if digest_of(listing) != digest:
        raise Environment("the listing of an unpacked image is not the one that its manifest names", rule="image-tree")
    count = 0
    for count, entry in enumerate(_entries(listing), start=1):  # noqa: B007  it is read below
        place = f"{root}/{entry.path}"
        try:
            there = os.lstat(place)
        except (FileNotFoundError, NotADirectoryError):
            raise _differs(entry.path, "is missing") from None
        if (entry.kind, entry.mode) != (_kind(there), _mode(there)):
            raise _differs(entry.path, "has another kind or mode")
        content = digests.of(place) if entry.kind == "f" else str(Path(place).readlink()) if entry.kind == "l" else ""
        if content != entry.content:
            raise _differs(entry.path, "has another content")
    if sum(1 for _ in _walk(root)) != count:  # no path twice: a listing is sorted, and its digest is that of the image
        known = {entry.path for entry in _entries(listing)}
        raise _differs(next(path for path, _ in _walk(root) if path not in known), "is not in the image")


def _entries(listing: bytes) -> Iterator[TreeEntry]:
    return (msgspec.json.decode(line, type=TreeEntry) for line in io.BytesIO(listing))


def list_entries(root: Path, digests: FileDigests) -> Iterator[TreeEntry]:
    """Yields a folder's files and folders. Raises Environment for anything else."""
    for path, item in _walk(root):
        found = item.stat(follow_symlinks=False)
        kind = _kind(found)
        if kind not in ("f", "d"):
            raise Environment(f"{root / path} is neither a file nor a folder", rule="image-tree")
        yield TreeEntry(path, kind, _mode(found), digests.of(root / path) if kind == "f" else "")


def _walk(root: Path) -> Iterator[tuple[str, os.DirEntry[str]]]:
    folders = [""]
    while folders:
        folder = folders.pop()
        with os.scandir(root / folder) as inside:
            for item in inside:
                path = f"{folder}/{item.name}" if folder else item.name
                yield path, item
                if item.is_dir(follow_symlinks=False):
                    folders.append(path)


def _kind(found: os.stat_result) -> str:
    if stat.S_ISREG(found.st_mode):
        return "f"
    return "d" if stat.S_ISDIR(found.st_mode) else "l" if stat.S_ISLNK(found.st_mode) else "?"


def _mode(found: os.stat_result) -> int:
    return 0o777 if stat.S_ISLNK(found.st_mode) else stat.S_IMODE(found.st_mode)


def _differs(path: str, how: str) -> Environment:
    return Environment(f"the unpacked engine image is damaged: {path} {how}", rule="image-tree",
                   hint="remove the folder engine-image of the node's cache: it is unpacked anew")  # fmt: skip

"""Unpacks an image to a folder: hashes each layer, checks each name, and compares the whole with its listing.

Unprivileged, with the standard library alone. Accepts only what ``oci.write_layers`` writes: files, folders and links,
each once.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import tarfile
from pathlib import Path, PurePosixPath
from typing import IO, Final

from chain.errors import Environment
from engines.identity import FileDigests
from engines.image.oci import LAYER, TREE, ImageManifest, blob_path, read_manifest
from engines.image.tree import TreeEntry, check, digest_of, encode

_CHUNK: Final = 1 << 20
ROOTFS: Final = "rootfs"
LISTING: Final = "listing"


def unpack_image(layout: Path, cache: Path, digests: FileDigests) -> Path:
    """Returns the image's root file system below ``cache``, unpacked if absent, and checked file by file.

    ``digests``: remembers them, so that only changed files are hashed again. Raises Environment.
    """
    digest, manifest = read_manifest(layout)
    folder = _folder(cache, digest)
    tree = manifest.annotations.get(TREE, "")
    if not (folder / LISTING).is_file():
        _unpack(layout, manifest, tree, folder)
    try:
        listing = (folder / LISTING).read_bytes()
    except OSError as error:
        raise Environment(f"cannot read {folder}: {error.strerror}", rule="image-tree") from error
    check(folder / ROOTFS, listing, tree, digests)
    return folder / ROOTFS


def is_unpacked(cache: Path, digest: str) -> bool:
    """Whether the image of this manifest is below ``cache``; does not check its contents."""
    return (_folder(cache, digest) / LISTING).is_file()


def _folder(cache: Path, digest: str) -> Path:
    return cache / digest.removeprefix("sha256:")[:16]


def _unpack(layout: Path, manifest: ImageManifest, tree: str, folder: Path) -> None:
    staged = folder.with_name(folder.name + ".new")
    shutil.rmtree(staged, ignore_errors=True)
    try:
        (staged / ROOTFS).mkdir(parents=True)
        entries: list[TreeEntry] = []
        for layer in manifest.layers:
            if layer.media_type != LAYER:
                hint = "build the image again: odfctl docs install tells how"
                raise Environment(f"a layer of type {layer.media_type}", rule="image-layer", hint=hint)
            entries += _unpack_layer(blob_path(layout, layer.digest), layer.digest, staged / ROOTFS)
        listing = encode(entries)
        if digest_of(listing) != tree:
            raise Environment("the layers of an image do not make the tree that its manifest names", rule="image-tree")
        (staged / LISTING).write_bytes(listing)
        shutil.rmtree(folder, ignore_errors=True)
        staged.replace(folder)
    except OSError as error:
        raise Environment(
            f"cannot unpack the engine image: {error.strerror}", rule="image-unpack", hint="it takes 1 GB of disk"
        ) from error
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def _unpack_layer(blob: Path, digest: str, root: Path) -> list[TreeEntry]:
    """Unpacks a layer. Raises Environment before anything of the layer is used: the folder is then deleted."""
    entries = []
    with blob.open("rb") as file:
        hashed = _Hashing(file)
        try:
            with tarfile.open(fileobj=hashed, mode="r|") as tar:
                for member in tar:
                    entries.append(_place(tar, member, root))
        except tarfile.TarError as error:
            raise Environment(f"a layer is no tar: {error}", rule="image-layer") from error
        # A tar may end before its file does, and the digest is that of the file.
        while hashed.read(_CHUNK):
            pass
    if hashed.digest != digest:
        raise Environment(f"a layer is not {digest}", rule="image-digest", hint="build or copy the image anew")
    return entries


def _place(tar: tarfile.TarFile, member: tarfile.TarInfo, root: Path) -> TreeEntry:
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts or not path.parts or str(path) != member.name.rstrip("/"):
        raise Environment(f"a layer names {member.name!r}", rule="image-layer")
    here = root
    for part in path.parts[:-1]:
        here = here / part
        # A link that an earlier member made could lead out of the folder.
        if here.is_symlink() or not here.is_dir():
            raise Environment(f"a layer names {member.name!r} below what is no folder", rule="image-layer")
    target = root / path
    if target.is_symlink() or target.exists():
        raise Environment(f"a layer names {member.name!r} twice", rule="image-layer")
    if member.isdir():
        target.mkdir(mode=0o755)
        target.chmod(0o755)
        return TreeEntry(str(path), "d", 0o755, "")
    if member.issym():
        target.symlink_to(member.linkname)
        return TreeEntry(str(path), "l", 0o777, member.linkname)
    if not member.isreg():
        raise Environment(f"a layer holds {member.name!r}, which is no file, folder or link", rule="image-layer")
    return TreeEntry(str(path), "f", member.mode & 0o755, _write(tar, member, target))


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> str:
    source, hashed = tar.extractfile(member), hashlib.sha256()
    assert source is not None
    with target.open("xb") as file:
        while piece := source.read(_CHUNK):
            hashed.update(piece)
            file.write(piece)
    target.chmod(member.mode & 0o755)
    # As in a container: bytecode and class data archives identify their sources by this time, wherever made.
    os.utime(target, (member.mtime, member.mtime))
    return hashed.hexdigest()


class _Hashing(io.RawIOBase):
    """Hashes the bytes read from a file."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._hash = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        piece: bytes = self._file.read(size)
        self._hash.update(piece)
        return piece

    @property
    def digest(self) -> str:
        return "sha256:" + self._hash.hexdigest()

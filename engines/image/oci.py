"""Writes, reads and unpacks an OCI image layout: one manifest, its configuration and uncompressed layers, by digest.

Layers are plain tar on purpose: the output of a compressor changes with its version, and the digest with it. A listing
of all files (path, kind, mode, content by digest) has its digest among the annotations of the manifest: pinning the
manifest pins every file, and an unpacked image can be checked at each start without its layers. An image is unpacked
without privilege, by the standard library alone: only what ``write_layers`` writes is accepted, each name once.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
import stat
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Final

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
    return Environment(
        f"the unpacked engine image is damaged: {path} {how}",
        rule="image-tree",
        hint="remove the folder engine-image of the node's cache: it is unpacked again",
    )


MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
CONFIG: Final = "application/vnd.oci.image.config.v1+json"
LAYER: Final = "application/vnd.oci.image.layer.v1.tar"
TREE: Final = "org.opendatafabric.tree"
"""Annotation: digest of the listing of all files in the layers."""
SPARK: Final = "org.opendatafabric.spark"
"""Annotation: version of Spark."""
CODE: Final = "org.opendatafabric.code"
"""Annotation: digest of our code inside."""
MAX_DOCUMENT: Final = 1 << 20
"""Most bytes of a manifest or configuration."""
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}\Z")
_CHUNK: Final = 1 << 20
SKIPPED: Final = frozenset({"__pycache__", ".lock"})
"""Files that a run leaves behind, which are not put into the image."""


class Descriptor(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    media_type: str
    digest: str
    size: int
    annotations: dict[str, str] = {}


class ImageManifest(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    schema_version: int
    media_type: str
    config: Descriptor
    layers: tuple[Descriptor, ...]
    annotations: dict[str, str]


class _Index(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    schema_version: int
    manifests: tuple[Descriptor, ...]


def dump(value: object) -> bytes:
    """Encodes as JSON with sorted keys: these bytes are hashed."""
    return msgspec.json.encode(value, order="sorted")


def blob_path(layout: Path, digest: str) -> Path:
    """Returns the path of a blob. Raises Environment for a text that is no sha256 digest, and so no
    file name of ours."""
    if _DIGEST.match(digest) is None:
        raise Environment(f"not a digest: {digest[:100]!r}", rule="image-digest")
    return layout / "blobs" / "sha256" / digest.removeprefix("sha256:")


def put(layout: Path, content: bytes) -> str:
    """Stores a document. Returns its digest."""
    digest = "sha256:" + hashlib.sha256(content).hexdigest()
    path = blob_path(layout, digest)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return digest


def write_image(
    layout: Path, layers: list[Descriptor], config: Mapping[str, object], annotations: Mapping[str, str], name: str
) -> tuple[str, str]:
    """Writes manifest, configuration and index over layers. Returns the digests of manifest and configuration."""
    made = {**config, "rootfs": {"type": "layers", "diff_ids": [layer.digest for layer in layers]}}
    raw = dump(made)
    told = Descriptor(media_type=CONFIG, digest=put(layout, raw), size=len(raw))
    manifest = ImageManifest(
        schema_version=2, media_type=MANIFEST, config=told, layers=tuple(layers), annotations=dict(annotations)
    )
    raw = dump(manifest)
    only = Descriptor(
        media_type=MANIFEST,
        digest=put(layout, raw),
        size=len(raw),
        annotations={"org.opencontainers.image.ref.name": name},
    )
    (layout / "index.json").write_bytes(dump(_Index(schema_version=2, manifests=(only,))))
    (layout / "oci-layout").write_bytes(b'{"imageLayoutVersion":"1.0.0"}')
    return only.digest, told.digest


def read_manifest(layout: Path) -> tuple[str, ImageManifest]:
    """Reads the only manifest of a layout and its digest. Raises Environment."""
    try:
        index = msgspec.json.decode(_document(layout / "index.json"), type=_Index)
        if len(index.manifests) != 1:
            raise Environment(
                f"{layout} holds {len(index.manifests)} images", rule="image-layout", hint="one is expected"
            )
        digest = index.manifests[0].digest
        raw = _document(blob_path(layout, digest))
        if "sha256:" + hashlib.sha256(raw).hexdigest() != digest:
            raise Environment(f"the manifest of {layout} is not {digest}", rule="image-digest", hint="build it again")
        return digest, msgspec.json.decode(raw, type=ImageManifest)
    except msgspec.DecodeError as error:
        raise Environment(f"{layout} is not an OCI layout: {error}", rule="image-layout") from error


def _document(path: Path) -> bytes:
    try:
        if path.stat().st_size > MAX_DOCUMENT:
            raise Environment(f"{path} is too large", rule="image-layout")
        return path.read_bytes()
    except OSError as error:
        raise Environment(f"cannot read {path}: {error.strerror}", rule="image-layout") from error


@dataclass(frozen=True, slots=True)
class Item:
    """One item of a layer: bytes, a file of ours, or the target of a link."""

    path: PurePosixPath
    """Path from the root, without a leading slash."""
    source: bytes | Path | str
    executable: bool = False


def files_below(folder: Path, place: str, skip: frozenset[str] = SKIPPED) -> Iterator[Item]:
    """Yields every file and link below a folder, at the same path below ``place``."""
    for path in folder.rglob("*"):
        inside = path.relative_to(folder)
        if skip & set(inside.parts) or (path.is_dir() and not path.is_symlink()):
            continue
        if path.is_symlink():
            yield Item(PurePosixPath(place, *inside.parts), str(path.readlink()))
        else:
            yield Item(PurePosixPath(place, *inside.parts), path, bool(path.stat().st_mode & stat.S_IXUSR))


@dataclass(frozen=True, slots=True)
class LayerContent:
    """The content of one layer."""

    items: Iterable[Item]
    folders: tuple[str, ...] = ()
    """Paths of empty folders."""
    owner: int = 0
    """User and group of everything that the layer adds."""


def write_layers(blobs: Path, parts: Iterable[LayerContent], epoch: int) -> tuple[list[Descriptor], list[TreeEntry]]:
    """Writes layers, lowest first, under their digests. Returns descriptors and entries. ``epoch``:
    seconds, for all times."""
    layers: list[Descriptor] = []
    entries: list[TreeEntry] = []
    for part in parts:
        known = frozenset(entry.path for entry in entries if entry.kind == "d")
        layer, added = _write_layer(blobs, part, epoch, known)
        layers.append(layer)
        entries += added
    return layers, entries


def _write_layer(
    blobs: Path, part: LayerContent, epoch: int, known: frozenset[str]
) -> tuple[Descriptor, list[TreeEntry]]:
    """Writes a layer under its digest; returns it and its entries. ``known``: folders of earlier
    layers, left out here."""
    by_path = {item.path: item for item in part.items}
    parents = {parent for path in by_path for parent in path.parents} | set(map(PurePosixPath, part.folders))
    parents |= {above for folder in parents for above in folder.parents}
    made = sorted(folder for folder in parents - {PurePosixPath(".")} if str(folder) not in known)
    entries = [TreeEntry(str(folder), "d", 0o755, "") for folder in made]
    blobs.mkdir(parents=True, exist_ok=True)
    staged = blobs / "staged"
    with staged.open("wb") as file:
        hashed = _Hashing(file)
        with tarfile.open(fileobj=hashed, mode="w|", format=tarfile.PAX_FORMAT) as tar:
            for folder in made:
                tar.addfile(_info(str(folder), tarfile.DIRTYPE, 0o755, epoch, part.owner))
            for path in sorted(by_path):
                entries.append(_add(tar, by_path[path], epoch, part.owner))
    digest = hashed.digest
    staged.replace(blobs / digest.removeprefix("sha256:"))
    return Descriptor(media_type=LAYER, digest=digest, size=hashed.size), entries


def _add(tar: tarfile.TarFile, item: Item, epoch: int, owner: int) -> TreeEntry:
    path = str(item.path)
    if isinstance(item.source, str):
        info = _info(path, tarfile.SYMTYPE, 0o777, epoch, owner)
        info.linkname = item.source
        tar.addfile(info)
        return TreeEntry(path, "l", 0o777, item.source)
    mode = 0o755 if item.executable else 0o644
    info = _info(path, tarfile.REGTYPE, mode, epoch, owner)
    if isinstance(item.source, bytes):
        info.size = len(item.source)
        tar.addfile(info, io.BytesIO(item.source))
        return TreeEntry(path, "f", mode, hashlib.sha256(item.source).hexdigest())
    info.size = item.source.stat().st_size
    with item.source.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        file.seek(0)
        tar.addfile(info, file)
    return TreeEntry(path, "f", mode, digest)


def _info(path: str, kind: bytes, mode: int, epoch: int, owner: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(path)
    info.type, info.mode, info.mtime, info.uid, info.gid = kind, mode, epoch, owner, owner
    return info


class _Hashing(io.RawIOBase):
    """Counts and hashes bytes on their way into a file."""

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
                hint = "build the image again: odfctl docs install says how"
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
        hashed = _HashedLayer(file)
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
        raise Environment(f"a layer is not {digest}", rule="image-digest", hint="build or copy the image again")
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


class _HashedLayer(io.RawIOBase):
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

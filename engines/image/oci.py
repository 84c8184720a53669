"""Reads and writes an OCI image layout: one manifest, its configuration and uncompressed layers, named by digest.

Layers are plain tar on purpose: the output of a compressor changes with its version, and the digest with it.
"""

from __future__ import annotations

import hashlib
import io
import re
import stat
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Final

import msgspec

from chain.errors import Environment
from engines.image.tree import TreeEntry

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
        media_type=MANIFEST, digest=put(layout, raw), size=len(raw),
        annotations={"org.opencontainers.image.ref.name": name},
    )  # fmt: skip
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
            raise Environment(f"the manifest of {layout} is not {digest}", rule="image-digest", hint="build it anew")
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

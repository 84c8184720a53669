"""Reads and writes an OCI image layout: one manifest, its configuration and uncompressed layers, named by digest.

Layers are plain tar on purpose: what a compressor makes changes with its version, and the digest with it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from chain.errors import Environment

MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
CONFIG: Final = "application/vnd.oci.image.config.v1+json"
LAYER: Final = "application/vnd.oci.image.layer.v1.tar"
TREE: Final = "org.opendatafabric.tree"
"""Annotation: digest of the listing of all that the layers hold together."""
SPARK: Final = "org.opendatafabric.spark"
"""Annotation: version of Spark."""
CODE: Final = "org.opendatafabric.code"
"""Annotation: digest of our code inside."""
MAX_DOCUMENT: Final = 1 << 20
"""Bytes of a manifest or configuration."""
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}\Z")


class Descriptor(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    media_type: str
    digest: str
    size: int
    annotations: dict[str, str] = {}


class Manifest(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    schema_version: int
    media_type: str
    config: Descriptor
    layers: tuple[Descriptor, ...]
    annotations: dict[str, str]


class _Index(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    schema_version: int
    manifests: tuple[Descriptor, ...]


def dump(value: object) -> bytes:
    """JSON with sorted keys: the bytes that are hashed."""
    return msgspec.json.encode(value, order="sorted")


def blob_path(layout: Path, digest: str) -> Path:
    """Raises Environment for what is no sha256 digest, and so no name of a file of ours."""
    if _DIGEST.match(digest) is None:
        raise Environment(f"not a digest: {digest[:100]!r}", rule="image-digest")
    return layout / "blobs" / "sha256" / digest.removeprefix("sha256:")


def put(layout: Path, content: bytes) -> str:
    """Keep a document; its digest."""
    digest = "sha256:" + hashlib.sha256(content).hexdigest()
    path = blob_path(layout, digest)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return digest


def write_image(
    layout: Path, layers: list[Descriptor], config: Mapping[str, object], annotations: Mapping[str, str], name: str
) -> tuple[str, str]:
    """Manifest, configuration and index over layers that are there already. Digests of manifest and configuration."""
    made = {**config, "rootfs": {"type": "layers", "diff_ids": [layer.digest for layer in layers]}}
    raw = dump(made)
    told = Descriptor(media_type=CONFIG, digest=put(layout, raw), size=len(raw))
    manifest = Manifest(
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


def read_manifest(layout: Path) -> tuple[str, Manifest]:
    """The one manifest of a layout and its digest. Raises Environment."""
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
        return digest, msgspec.json.decode(raw, type=Manifest)
    except msgspec.DecodeError as error:
        raise Environment(f"{layout} is not an OCI layout: {error}", rule="image-layout") from error


def _document(path: Path) -> bytes:
    try:
        if path.stat().st_size > MAX_DOCUMENT:
            raise Environment(f"{path} is too large", rule="image-layout")
        return path.read_bytes()
    except OSError as error:
        raise Environment(f"cannot read {path}: {error.strerror}", rule="image-layout") from error

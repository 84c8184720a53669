"""Defines a PersistentVolume: a folder or a bucket, its size, and the datasets whose slices lie there. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import PurePosixPath
from typing import Annotated, Any, Final

import msgspec

from chain.errors import Invalid
from chain.model.wire import Scalar
from odfd.datasets.manifest import VOLUME
from odfd.repositories.manifest import RepositoryPlace, place_of
from odfd.resources import registry
from odfd.resources.manifest import Draft, describe, parse_size
from odfd.resources.references import refers_to
from odfd.resources.selectors import TARGETS_HELP, Facts, Targets, means
from odfd.resources.types import OWN, ResourceType, annotation_of
from odfd.runtime.buckets import REGION

TYPE: Final = VOLUME
POLICY: Final = "volumePolicy"
CACHE: Final = 10 << 30
"""Bytes of a bucket that are cached beside the state directory, unless the policy names another size."""
_KEYS: Final = ("access_key", "secret_key")
_OF_FOLDERS: Final = ("path",)
_OF_BUCKETS: Final = ("bucket", "endpoint", "region", "prefix", "credentials")
FIXED: Final = ("kind", "path", "bucket", "endpoint", "prefix")
"""Fields with the place of a volume, which cannot change while it contains data."""


class VolumeKind(Enum):
    """A kind of volume."""

    S3 = "S3"
    HOST_PATH = "HostPath"


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """The capacity of a volume."""

    storage: Annotated[str, describe("A size, such as 500Gi or 2TB. Default: no limit.")] | None = None


class VolumeCredentials(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The keys of a bucket."""

    access_key: Annotated[str, describe("A value, as SecretSet:NAME#KEY."), refers_to("SecretSet")] | None = None
    secret_key: Annotated[str, describe("A value, as SecretSet:NAME#KEY."), refers_to("SecretSet")] | None = None


class PersistentVolumeSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The place of a volume, and its size."""

    kind: Annotated[VolumeKind, Scalar("int32"), describe("A bucket, or a folder of this machine.")]
    path: Annotated[str, describe("For a HostPath: absolute path of a folder on another disk."), OWN] | None = None
    bucket: Annotated[str, describe("For S3: the bucket.")] | None = None
    endpoint: Annotated[str, describe("For S3: https://HOST. Default: Amazon's.")] | None = None
    region: Annotated[str, describe(f"For S3: the region. Default: {REGION}.")] | None = None
    prefix: Annotated[str, describe("For S3: a folder in the bucket.")] | None = None
    capacity: Annotated[Capacity, describe("Most data to store there. Default: no limit.")] | None = None
    credentials: (
        Annotated[VolumeCredentials, describe("For S3: the keys. Without them requests are unsigned.")] | None
    ) = None

    def place(self) -> str:
        """Returns the folder, or the bucket with its prefix. Raises Invalid."""
        return self.path or "" if self.kind is VolumeKind.HOST_PATH else bucket_of(self).root


class VolumePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Selects the datasets whose slices lie in a volume."""

    datasets: Annotated[Targets, describe(f"{TARGETS_HELP} Default: none.")] = ()
    cache: Annotated[str, describe("For S3: size of the local cache for queries and peers. Default: 10Gi.")] | None = (
        None
    )

    def means(self, dataset: str, facts: Callable[[], Facts]) -> bool:
        """Whether the slices of a dataset, by its name, lie in the volume."""
        return means(self.datasets, dataset, facts)

    @property
    def cache_bytes(self) -> int:
        """The bytes of a bucket that may be cached here. Raises Invalid."""
        return CACHE if self.cache is None else size_of(self.cache)


def policy_of(annotations: Mapping[str, Any]) -> VolumePolicy:
    """Parses a policy, also from annotations set by hand. Raises Invalid."""
    try:
        policy = msgspec.convert(annotation_of(annotations, "storage", POLICY) or {}, VolumePolicy)
    except msgspec.ValidationError as error:
        hint = "{datasets: [NAME], cache: 10Gi}"
        raise Invalid(f"{POLICY}: {error}", rule="volume-policy", hint=hint) from error
    _ = policy.cache_bytes
    return policy


def size_of(text: str) -> int:
    """Returns the bytes that a text such as ``10Gi``, ``10GiB`` or ``2TB`` states. Raises Invalid."""
    return parse_size(text if text.endswith("B") else f"{text}B")


def bucket_of(spec: PersistentVolumeSpec) -> RepositoryPlace:
    """Returns the place of a bucket. Raises Invalid."""
    bucket, prefix = spec.bucket or "", (spec.prefix or "").strip("/")
    rest = f"{bucket}/{prefix}".rstrip("/")
    return place_of(f"s3://{rest}" if spec.endpoint is None else f"s3+{spec.endpoint.rstrip('/')}/{rest}", spec.region)


def check_volume(draft: Draft) -> None:
    """Adds the mistakes in a PersistentVolume to its draft."""
    spec: PersistentVolumeSpec = draft.spec
    others = _OF_BUCKETS if spec.kind is VolumeKind.HOST_PATH else _OF_FOLDERS
    for key in others:
        if getattr(spec, key) is not None:
            draft.note(f"spec.{key}", f"a {spec.kind.value} has no {key}", "volume-place", "leave it out")
    if spec.kind is VolumeKind.HOST_PATH:
        path = PurePosixPath(spec.path or "")
        if not path.is_absolute() or ".." in path.parts or "\0" in str(path):
            draft.note("spec.path", "a folder is named by its whole path", "volume-place", "path: /mnt/cold/odf")
    elif not spec.bucket:
        draft.note("spec", "a bucket is missing", "volume-place", "bucket: NAME")
    else:
        draft.attempt("spec.bucket", lambda _: bucket_of(spec), spec.bucket)
    keys = {} if spec.credentials is None else {key: getattr(spec.credentials, key) for key in _KEYS}
    if None in keys.values() and any(keys.values()):
        use = "accessKey and secretKey; or neither, where requests are unsigned"
        draft.refuse("spec.credentials", "one key without the other signs nothing", "storage/AwsCredentials", use)
        return
    for text in filter(None, keys.values()):
        if not text.partition("#")[2]:
            hint = "SecretSet:NAME#KEY"
            draft.note("spec.credentials", f"{text[:80]!r} names no value of a SecretSet", "volume-credentials", hint)
    if spec.capacity is not None:
        draft.attempt("spec.capacity.storage", size_of, spec.capacity.storage)
    if POLICY in draft.typed:
        draft.attempt(f"headers.annotations.{POLICY}.cache", size_of, draft.typed[POLICY].cache)
        draft.check_targets(f"headers.annotations.{POLICY}.datasets", draft.typed[POLICY].datasets)


PERSISTENT_VOLUME_TYPE: Final = ResourceType(
    names=registry.PERSISTENT_VOLUME,
    about="Storage for slices of datasets outside of the state directory: a folder on another disk, or a bucket.",
    spec=PersistentVolumeSpec, annotations={POLICY: VolumePolicy},
    is_silent=True,
    check=check_volume,
    example="""\
$schema: PersistentVolume
headers:
  name: cold
  annotations:
    volumePolicy: {datasets: ["archive.%"]}
spec:
  kind: HostPath
  path: /mnt/cold/odf
  capacity: {storage: 500Gi}
""",
)  # fmt: skip

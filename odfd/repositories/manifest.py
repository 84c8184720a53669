"""Defines a Repository: its place, and the secrets of its credentials. Pure.

A URL is shown wherever a repository is, so one with a password or a query is refused, and no message repeats it.
"""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal, NamedTuple, TypeAlias
from urllib.parse import SplitResult, unquote, urlsplit

import msgspec

from chain.errors import Fault, Invalid
from odfd.resources.manifest import Draft, described
from odfd.resources.references import refers_to
from p2p.web import folder_url

Kind: TypeAlias = Literal["folder", "web", "bucket"]
REGION: Final = "us-east-1"
_HINT: Final = "file:///FOLDER, https://HOST/FOLDER, s3://BUCKET/FOLDER or s3+https://HOST/BUCKET/FOLDER"
_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]\Z")
_HOST: Final = re.compile(r"(?:[A-Za-z0-9.-]+|\[[0-9a-fA-F:.]+\])(?::[0-9]{1,5})?\Z")
_REGION: Final = re.compile(r"[a-z0-9-]{1,40}\Z")


class RepositorySpec(msgspec.Struct, frozen=True, kw_only=True):
    """A place of many datasets, each in a folder of its name."""

    url: Annotated[
        str, described("file:///FOLDER, https://HOST/FOLDER, s3://BUCKET/FOLDER or s3+https://HOST/BUCKET/FOLDER.")
    ]
    credentials: (
        Annotated[
            str,
            described(
                "The SecretSet with accessKeyId and secretAccessKey of a bucket, and sessionToken where there is one."
            ),
            refers_to("SecretSet"),
        ]
        | None
    ) = None
    region: Annotated[str, described("Of a bucket; us-east-1.")] | None = None


class Place(NamedTuple):
    """The place of a repository."""

    kind: Kind
    root: str
    """A folder's path, or a URL; without its last slash."""
    endpoint: str = ""
    """Of a bucket: where it is asked."""
    bucket: str = ""
    prefix: str = ""

    def of(self, dataset: str) -> str:
        """Returns the place of a dataset in it, for import and export."""
        return f"{self.root}/{dataset}"


def check_repository(draft: Draft) -> None:
    """Adds to the mistakes of a draft."""
    try:
        place = place_of(draft.spec.url, draft.spec.region)
    except Fault as fault:
        draft.note("spec.url", fault.message, fault.rule, fault.hint)
        return
    if place.kind != "bucket" and (draft.spec.credentials or draft.spec.region):
        draft.note("spec", "credentials and region are of buckets", "repository-url", "leave them out")


def place_of(url: str, region: str | None = None) -> Place:
    """Raises Invalid."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise _bad("it cannot be read") from None
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise _bad("it would be shown wherever the repository is, so it has neither a password nor ? nor #")
    if parts.scheme == "file":
        return _folder(parts)
    if parts.scheme in ("s3", "s3+http", "s3+https"):
        return _bucket(url, parts, region or REGION)
    if (web := folder_url.place_of(url)) is not None:
        return Place("web", web)
    raise _bad(f"nothing is known of {parts.scheme[:20] or 'its kind'}")


def _folder(parts: SplitResult) -> Place:
    path = unquote(parts.path)
    if parts.netloc not in ("", "localhost") or not path.startswith("/") or "\0" in path:
        raise _bad("a folder of this machine is named by its whole path")
    return Place("folder", path.rstrip("/"))


def _bucket(url: str, parts: SplitResult, region: str) -> Place:
    """At the endpoint that is named, or Amazon's."""
    if not _REGION.match(region):
        raise _bad("its region is none")
    path = parts.path.strip("/")
    if parts.scheme == "s3":
        bucket, prefix = parts.netloc, path
        endpoint = f"https://{bucket}.s3.{region}.amazonaws.com"
    else:
        (bucket, _, prefix), endpoint = path.partition("/"), f"{parts.scheme[3:]}://{parts.netloc}"
        if not _HOST.match(parts.netloc):
            raise _bad("it names no host")
    if not _BUCKET.match(bucket):
        raise _bad("it names no bucket")
    if any(part in ("", ".", "..") or "%" in part for part in prefix.split("/") if prefix):
        raise _bad("a folder in a bucket has plain names between single slashes")
    return Place("bucket", url.rstrip("/"), endpoint, bucket, prefix)


def _bad(why: str) -> Invalid:
    return Invalid(f"not the URL of a repository: {why}", rule="repository-url", hint=_HINT)

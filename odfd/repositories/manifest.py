"""Defines a Repository: its place, and the secrets of its credentials. Pure.

A URL is shown wherever a repository is, so one with a password or a query is refused, and no message repeats it.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, NamedTuple, TypeAlias
from urllib.parse import SplitResult, unquote, urlsplit

import msgspec

from chain.errors import Fault, Invalid
from odfd.resources import registry
from odfd.resources.manifest import Draft, describe
from odfd.resources.references import refers_to
from odfd.resources.types import ResourceType
from odfd.runtime.buckets import REGION, BucketAddress, address_of, is_bucket
from odfd.runtime.sftp_address import SftpAddress, is_host_key, sftp_address
from p2p.ipfs.record import check_cid, check_key_name
from p2p.web import folder_url

Kind: TypeAlias = Literal["folder", "web", "bucket", "sftp", "ipfs", "node"]
NODE: Final = "odf+"
"""Prefix of ``http``, ``https``, ``ws`` or ``wss`` for a node with the smart transfer protocol, odfd or kamu."""
TOKEN: Final = "token"  # noqa: S105  the name of a secret
"""The name of a node's secret, an access token."""
_HINT: Final = (
    "file:///FOLDER, https://HOST/FOLDER, odf+https://HOST, s3://BUCKET/FOLDER, gs://BUCKET/FOLDER,"
    " az://ACCOUNT/CONTAINER/FOLDER, s3+https://HOST/BUCKET/FOLDER, sftp://USER@HOST/FOLDER, ipns://NAME or ipfs://CID"
)
SFTP_SECRETS: Final = ("password", "privateKey")
"""Names of the secrets of a user of SFTP, of which one is needed."""
IPFS: Final = "/ipfs/"
IPNS: Final = "/ipns/"
_IPFS_KINDS: Final = (("ipfs://", IPFS, check_cid), ("ipns://", IPNS, check_key_name))
_WS: Final = {"ws": "http", "wss": "https"}


class RepositorySpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A place that stores many datasets, each in a folder of its name."""

    url: Annotated[
        str,
        describe(
            "file:///FOLDER, https://HOST/FOLDER, odf+https://HOST (a node), s3://BUCKET/FOLDER, gs://BUCKET/FOLDER or"
            " az://ACCOUNT/CONTAINER/FOLDER; s3+https://HOST/BUCKET/FOLDER, and gs and az alike, at another host;"
            " sftp://USER@HOST/FOLDER; ipns://NAME or ipfs://CID, by the node's Kubo."
        ),
    ]
    credentials: (
        Annotated[
            str,
            describe(
                "The SecretSet with the credentials. S3: accessKeyId, secretAccessKey and, if used, "
                "sessionToken. Google: serviceAccountKey. Azure: accountKey or sasToken. SFTP: password or "
                "privateKey. A node: token, its access token."
            ),
            refers_to("SecretSet"),
        ]
        | None
    ) = None
    region: Annotated[str, describe(f"For S3: the region of the bucket. Default: {REGION}.")] | None = None
    host_key: (
        Annotated[str, describe("For SFTP: the server's public key, as ssh-keyscan shows it: ssh-ed25519 AAAA….")]
        | None
    ) = None


class RepositoryPlace(NamedTuple):
    """The place of a repository."""

    kind: Kind
    root: str
    """A folder's path, or a URL; without the last slash."""
    bucket: BucketAddress | None = None
    sftp: SftpAddress | None = None

    def of(self, dataset: str) -> str:
        """Returns the place of a dataset in the repository, for import and export."""
        return f"{self.root}/{dataset}"


def check_repository(draft: Draft) -> None:
    """Adds the mistakes in a Repository's spec to its draft."""
    try:
        place = place_of(draft.spec.url, draft.spec.region)
    except Fault as fault:
        draft.note("spec.url", fault.message, fault.rule, fault.hint)
        return
    if place.kind != "bucket" and draft.spec.region:
        draft.note("spec", "a region is of buckets of S3", "repository-url", "leave it out")
    if place.kind not in ("bucket", "sftp", "node") and draft.spec.credentials:
        draft.note("spec", "credentials are of buckets, nodes and SFTP", "repository-url", "leave them out")
    if place.kind == "sftp":
        _check_sftp(draft)
    elif draft.spec.host_key:
        draft.note("spec", "a hostKey is of servers of SFTP", "repository-url", "leave it out")


def _check_sftp(draft: Draft) -> None:
    if not draft.spec.host_key or not is_host_key(draft.spec.host_key):
        text = "hostKey is no public key" if draft.spec.host_key else "the key of the server is not known"
        hint = "write hostKey: ssh-ed25519 AAAA…, as its owner published it, or as ssh-keyscan HOST shows it"
        draft.note("spec.hostKey", text, "sftp-host-key", hint)
    if not draft.spec.credentials:
        hint = f"name a SecretSet with {' or '.join(SFTP_SECRETS)}"
        draft.note("spec.credentials", "a user of SFTP has credentials", "repository-credentials", hint)


def place_of(url: str, region: str | None = None) -> RepositoryPlace:
    """Returns the place that a URL names. Raises Invalid."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise _bad("it cannot be read") from None
    if parts.scheme == "sftp":
        return _sftp(url, parts)
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise _bad("it would be shown wherever the repository is, so it has neither a password nor ? nor #")
    if parts.scheme == "file":
        return _folder(parts)
    if is_bucket(url):
        return _bucket(url, region)
    if (node := node_place(url)) is not None:
        return RepositoryPlace("node", node)
    if (web := folder_url.place_of(url)) is not None:
        return RepositoryPlace("web", web)
    if parts.scheme in ("ipfs", "ipns"):
        return _ipfs(url)
    raise _bad(f"nothing is known of {parts.scheme[:20] or 'its kind'}")


def node_place(url: str) -> str | None:
    """Returns the URL of a node, or of a dataset there, as ``odf+http…``; ``None`` for another URL. Raises Invalid."""
    scheme, _, rest = url.partition("://")
    if not scheme.lower().startswith(NODE):
        return None
    plain = scheme.lower().removeprefix(NODE)
    found = folder_url.place_of(f"{_WS.get(plain, plain)}://{rest}")
    if found is None:
        raise _bad(f"{scheme[:20]} is no way to a node: odf+http, odf+https, odf+ws and odf+wss are")
    return NODE + found


def _folder(parts: SplitResult) -> RepositoryPlace:
    path = unquote(parts.path)
    if parts.netloc not in ("", "localhost") or not path.startswith("/") or "\0" in path:
        raise _bad("a folder of this machine is named by its whole path")
    return RepositoryPlace("folder", path.rstrip("/"))


def _sftp(url: str, parts: SplitResult) -> RepositoryPlace:
    if ":" in parts.netloc.rpartition("@")[0] or parts.query or parts.fragment or "%" in url:
        raise _bad("it would be shown wherever the repository is, so it has neither a password nor ? # %")
    try:
        return RepositoryPlace("sftp", url.rstrip("/"), sftp=sftp_address(url.rstrip("/")))
    except Invalid as fault:
        raise _bad(fault.message) from None


def _ipfs(url: str) -> RepositoryPlace:
    for scheme, root, check in _IPFS_KINDS:
        if url.startswith(scheme):
            name, _, below = url.removeprefix(scheme).rstrip("/").partition("/")
            check(name)
            if below and (root == IPNS or any(part in ("", ".", "..") for part in below.split("/"))):
                raise _bad("ipns://NAME is a whole repository; ipfs://CID/FOLDER has names between single slashes")
            return RepositoryPlace("ipfs", f"{root}{name}/{below}".rstrip("/"))
    raise _bad("nothing is known of its kind")


def _bucket(url: str, region: str | None) -> RepositoryPlace:
    try:
        found = address_of(url, region)
    except Invalid as fault:
        raise _bad(fault.message) from None
    prefix = found.below.strip("/")
    if any(part in ("", ".", "..") or "%" in part for part in prefix.split("/") if prefix):
        raise _bad("a folder in a bucket has plain names between single slashes")
    return RepositoryPlace("bucket", url.rstrip("/"), found._replace(below=prefix))


def _bad(why: str) -> Invalid:
    return Invalid(f"not the URL of a repository: {why}", rule="repository-url", hint=_HINT)


REPOSITORY_TYPE: Final = ResourceType(
    names=registry.REPOSITORY,
    about="A folder, bucket or server with many datasets in the ODF layout, to push to and pull from "
    "(odfctl docs repositories).",
    spec=RepositorySpec,
    is_silent=True,
    check=check_repository,
    example="""\
$schema: Repository
headers:
  name: archive
spec:
  url: file:///srv/odf
""",
)  # fmt: skip

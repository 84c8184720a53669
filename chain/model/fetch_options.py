"""Declares kinds of sources and options of fetch steps that the format does not have.

Kinds: queries of databases, answers in pages, topics of brokers, and those of other packages. Options: credentials for
a bucket or an SFTP server that a step of the format names, and whether a container has a network. As options of a read
step (``read_options``) they are an attribute of the step's columns, beside a fetch step ``Url``. Its URL has a scheme
that the web does not have, so an implementation that does not know the attribute refuses the source, instead of taking
other data for it. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec

from chain.errors import Invalid
from chain.model.schema import DataSchema

FETCH: Final = "w3id.org/odfd/fetch"
"""Attribute of the schema of a read step: an object of one of the classes of ``FetchOptions``."""
RULE: Final = "fetch-option"
_MAX_QUERY: Final = 64 << 10
_MAX_CURSOR: Final = 8
BATCH_ROWS: Final = 100_000
BATCH_MESSAGES: Final = 10_000
_MAX_BATCH: Final = 10_000_000
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


PAGES: Final = 1_000
_MAX_PAGES: Final = 100_000
_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
_Path = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
"""Names of nested members of a JSON document, joined by dots: ``meta.next``."""


class _Options(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True
):
    """Base of all options. Names of fields are those of the fetch step in manifests."""


class SqlQuery(_Options, frozen=True, kw_only=True, tag_field="kind", tag="Sql"):
    """A source whose rows are a database's answer to a query."""

    query: Annotated[str, msgspec.Meta(min_length=1, max_length=_MAX_QUERY)]
    cursor: Annotated[tuple[_Name, ...], msgspec.Meta(max_length=_MAX_CURSOR)] = ()
    """Columns whose values grow: a pull asks for rows beyond the last ones it had; without cursor for all rows."""
    batch_rows: Annotated[int, msgspec.Meta(ge=1, le=_MAX_BATCH)] = BATCH_ROWS
    """Most rows of one transaction, if there is a cursor."""


class Paging(_Options, frozen=True, kw_only=True):
    """Names the position of the next page in an answer: give one of ``link``, ``next`` and ``number``."""

    link: bool = False
    """Whether the header ``Link`` names the next page, as ``rel="next"`` (RFC 8288)."""
    next: _Path | None = None
    """Path in the answer's JSON to the next URL, or to the value of ``parameter``; absent on the last page."""
    number: _Name | None = None
    """Parameter of the query that counts pages; the first page without records ends the fetch."""
    first: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 1
    parameter: _Name | None = None
    """Parameter of the query in which the value of ``next`` is sent; ``None``: that value is a URL."""
    records: _Path | None = None
    """Path in the answer's JSON to the list of records; ``None``: the answer itself is the list."""
    most: Annotated[int, msgspec.Meta(ge=1, le=_MAX_PAGES)] = PAGES
    """Most pages of one fetch; an answer with more is refused, as it would be incomplete."""


class ClientCredentials(_Options, frozen=True, kw_only=True):
    """OAuth client credentials (RFC 6749, 4.4): the node requests a token before each fetch."""

    token_url: _Text
    client_id: _Text
    client_secret: _Text
    scope: _Text | None = None


class HttpRequest(_Options, frozen=True, kw_only=True, tag_field="kind", tag="Http"):
    """A source that is one request to a web service, with all pages of its answer."""

    method: Literal["GET", "POST"] = "GET"
    body: Annotated[str, msgspec.Meta(max_length=_MAX_QUERY)] | None = None
    pages: Paging | None = None
    auth: ClientCredentials | None = None


class KafkaTopic(_Options, frozen=True, kw_only=True, tag_field="kind", tag="Kafka"):
    """A source of a topic's messages, whose values are JSON documents."""

    batch_messages: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = BATCH_MESSAGES
    """Most messages of one transaction."""
    envelope: bool = False
    """Whether rows are the messages themselves: partition, offset, time, and key and value as texts."""
    mechanism: Literal["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"] = "SCRAM-SHA-512"
    """SASL mechanism by which the user of the URL signs in."""


class ServerEvents(_Options, frozen=True, kw_only=True, tag_field="kind", tag="Sse"):
    """A source of server-sent events, whose data are JSON documents."""

    batch_messages: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = BATCH_MESSAGES
    """Most events of one transaction."""
    envelope: bool = False
    """Whether rows are the events themselves: id, type and data as texts."""


class BucketAccess(_Options, frozen=True, kw_only=True, tag_field="kind", tag="Bucket"):
    """Credentials for the bucket of a step ``FilesGlob`` whose path is a pattern of keys; without keys it is public."""

    region: _Name | None = None
    access_key_id: _Text | None = None
    secret_access_key: _Text | None = None
    session_token: _Text | None = None
    service_account_key: _Text | None = None
    """Of Google, as all that follows is of one kind of store."""
    account_key: _Text | None = None
    sas_token: _Text | None = None


class SftpAccess(_Options, frozen=True, kw_only=True, tag_field="kind", tag="Sftp"):
    """The server's key, and that of the user who signs in, for an SFTP server of a step ``Url`` or ``FilesGlob``."""

    host_key: _Text | None = None
    """The public key of the server, as in a line of OpenSSH: its type and its base64 text."""
    private_key: _Text | None = None


class ContainerAccess(_Options, frozen=True, kw_only=True, tag_field="kind", tag="Container"):
    """Permissions that a step ``Container`` asks for in addition to its image."""

    network: bool = False
    """Whether the container reaches a network; the settings of the node have to allow it too."""


class Plugin(_Options, frozen=True, kw_only=True, tag_field="kind", tag="Plugin"):
    """A source of a kind that another package adds to a node."""

    source: _Name
    """The name under which the package declares the kind."""
    options: dict[str, Any] = {}
    """Options of that kind, which the package checks."""


FetchOptions: TypeAlias = (
    SqlQuery | HttpRequest | KafkaTopic | ServerEvents | Plugin | BucketAccess | SftpAccess | ContainerAccess
)
KINDS: Final[Mapping[str, type[FetchOptions]]] = {
    "Sql": SqlQuery,
    "Http": HttpRequest,
    "Kafka": KafkaTopic,
    "Sse": ServerEvents,
    "Plugin": Plugin,
}
"""Kinds of sources that manifests accept beyond the format's. In a chain a step ``Url`` stands for each."""
BUCKET: Final = "Bucket"
SFTP: Final = "Sftp"
CONTAINER: Final = "Container"
_ALL: Final[Mapping[str, type[FetchOptions]]] = {
    **KINDS,
    BUCKET: BucketAccess,
    SFTP: SftpAccess,
    CONTAINER: ContainerAccess,
}
BESIDE: Final[Mapping[str, tuple[str, ...]]] = {
    "FilesGlob": (BUCKET, SFTP),
    "Url": (SFTP,),
    "Container": (CONTAINER,),
}
"""Options that manifests may write in steps of the format, by the kind of the step."""
OWN_SCHEME: Final = "odfd+"
"""Prefix of the URLs of some kinds in a chain, lest others take the first page for the whole answer."""
_PREFIXED: Final = frozenset({"Http", "Sse", "Plugin"})


def options_of(kind: str) -> type[FetchOptions]:
    """Returns the class of a kind of options."""
    return _ALL[kind]


def names(kind: str) -> frozenset[str]:
    """Lists the fields that manifests may write for a kind, in addition to those of its step."""
    return frozenset(field.encode_name for field in msgspec.structs.fields(_ALL[kind]))


def names_beside(step: str) -> frozenset[str]:
    """Lists the fields that manifests may write in a step of the format, in addition to its own."""
    return frozenset().union(*map(names, BESIDE.get(step, ())))


def in_chain(kind: str, url: str) -> str:
    """Returns the URL that a chain holds for the one that a manifest writes."""
    return f"{OWN_SCHEME}{url}" if kind in _PREFIXED and not url.startswith(OWN_SCHEME) else url


def fetch_options(schema: DataSchema | None) -> FetchOptions | None:
    """Returns the fetch options among the attributes of a read step's columns; ``None`` without any. Raises Invalid."""
    found = None if schema is None else (schema.extra or {}).get(FETCH)
    return None if found is None else declared_fetch(found)


def declared_fetch(value: object) -> FetchOptions:
    """Decodes the attribute's value. Raises Invalid."""
    try:
        found: FetchOptions = msgspec.convert(value, FetchOptions)
    except msgspec.ValidationError as error:
        kind = str(value.get("kind")) if isinstance(value, dict) else ""
        known = sorted(names(kind)) if kind in _ALL else sorted(_ALL)
        raise Invalid(
            f"options of the fetch step: {error}", rule=RULE, hint=f"known are {', '.join(known)}; odfctl docs sources"
        ) from error
    if isinstance(found, HttpRequest):
        _check_request(found)
    if isinstance(found, Plugin) and found.source in _ALL:
        raise Invalid(f"{found.source} is a kind of odfd itself", rule=RULE, hint=f"write kind: {found.source}")
    return found


def _check_request(request: HttpRequest) -> None:
    pages = request.pages
    if request.body is not None and request.method == "GET":
        raise Invalid("a GET has no body", rule=RULE, hint="say method: POST, or leave the body out")
    if pages is not None and sum((pages.link, pages.next is not None, pages.number is not None)) != 1:
        raise Invalid("pages needs one of link, next and number", rule=RULE, hint="see odfctl docs sources")
    if pages is not None and pages.parameter is not None and pages.next is None:
        raise Invalid("parameter is of no use without next", rule=RULE, hint="say next: the path of its value")

"""Defines values about types of resources, resources, endpoints of Sources, accounts and tokens."""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias, TypeVar

import msgspec

from odfd.control.wire.value import Request, Value
from odfd.resources.registry import STATE

V = TypeVar("V", bound=Value)
_Type: TypeAlias = type[V]
PROBLEM: Final = "ReconciliationError"
"""The condition that says why the last attempt failed."""
OWNERS: Final = "OwnerReferences"
REFERENCES: Final = "References"
SYSTEM_LABELS: Final = "SystemLabels"
"""Conditions with what the format has no field for: the owners, what references are resolved to, the node's labels."""
BESIDE: Final = frozenset({PROBLEM, OWNERS, REFERENCES, STATE, SYSTEM_LABELS})
"""Conditions that no controller reports."""


class TypeView(Value, frozen=True, kw_only=True):
    """A row of ``odfctl types``: a type of resource that this node knows."""

    name: str
    uri: str
    plural: str
    aliases: tuple[str, ...] = ()
    acts: bool
    """Whether a manifest of it can be applied."""
    about: str
    instead: str = ""
    """For a type that cannot be applied: what to use instead."""


class FieldView(Value, frozen=True, kw_only=True):
    """One field of a part of a type."""

    name: str
    type: str
    required: bool = False
    description: str = ""


class Explanation(Value, frozen=True, kw_only=True):
    """The answer of ``odfctl explain`` for a type, or for a part of it."""

    name: str
    uri: str
    path: str
    """Path of the part; empty: the whole."""
    type: str
    description: str
    fields: tuple[FieldView, ...]
    example: str = ""
    """A manifest, if the whole type is explained."""


class ResourceView(Value, frozen=True, kw_only=True):
    """A declared resource."""

    type: str
    name: str
    schema: str
    """The URI of its type."""
    headers: dict[str, Any]
    spec: Any = None
    """``None``: it was not made by a manifest of its type."""
    id: str
    labels: dict[str, Any]
    generation: int
    updated_at: str
    system_labels: dict[str, str] = msgspec.field(default_factory=dict)
    """Labels from the controller of its type: they can be selected by, and are in no manifest."""
    status: dict[str, Any] = msgspec.field(default_factory=dict)
    """``phase``, ``observedGeneration``, ``conditions``: the result of applying it."""
    account: dict[str, str] = msgspec.field(default_factory=dict)
    """Id, did and name of the account that has it, also if that is the node's owner."""


class LabelRequest(Request, frozen=True, kw_only=True):
    """Labels and annotations to set; ``null`` takes one away."""

    labels: dict[str, Any] = msgspec.field(default_factory=dict)
    annotations: dict[str, Any] = msgspec.field(default_factory=dict)


class AccountView(Value, frozen=True, kw_only=True):
    """The account that asks."""

    name: str | None = None
    """Name of the account; ``null``: the node's owner, or a caller without account."""
    id: str | None = None
    node_owner: bool = False
    """Whether the caller is the node's owner, with every right."""
    organizations: tuple[str, ...] = ()
    """Organisations whose rights the account has as a member."""


class TokenRequest(Request, frozen=True, kw_only=True):
    """A token of the account that asks."""

    role: Literal["reader", "editor", "maintainer", "owner"] = "owner"
    """The highest role that the token permits; it never exceeds the account's own."""
    expires: str = "30d"
    """Time until it expires: at most 366d."""
    note: str = ""
    """Note for people: where it is used."""


class TokenView(Value, frozen=True, kw_only=True):
    """A token of an account."""

    id: str
    account: str
    """Name of the account."""
    role: str
    """The highest role that it permits."""
    created_at: str
    expires_at: str
    note: str = ""
    token: str | None = None
    """The token itself, only in the answer that creates it."""


class SecretKey(Value, frozen=True, kw_only=True):
    """The public key, as a JWK, that secrets are sealed to for a node (``odfctl secret seal``)."""

    kty: str
    crv: str
    x: str
    kid: str


class SecretRotation(Value, frozen=True, kw_only=True):
    """The re-encryption of a node's secrets to a new key."""

    values: int
    """Number of values that are sealed to it."""


class ResourceChange(Value, frozen=True, kw_only=True):
    """A row of ``odfctl events``: one event of the log of resources."""

    version: str
    """Version of the log, to continue from."""
    time: str
    type: str
    name: str
    id: str
    generation: int
    change: str
    """``Created``, ``Changed``, ``Deleted``; for a status its new phase, or ``Observed``.

    ``Bookmark``, if asked for, is a version alone: how far the log was read before the first new change.
    """
    details: tuple[str, ...] = ()


class ResourceNews(Value, frozen=True, kw_only=True):
    """A line of a watch: a change, or a bookmark after the initial state."""

    version: str
    """Version to continue from: a watch since it yields everything later."""
    op: Literal["Added", "Modified", "Deleted", "Bookmark", "Reset"]
    """``Reset`` is the last: the watcher's rights changed, and it must begin anew, without a version."""
    resource: ResourceView | None = None


class ResourceManifest(Value, frozen=True, kw_only=True):
    """A resource in the shape of a manifest, as RFC-018's paths answer."""

    schema: str = msgspec.field(name="$schema")
    headers: dict[str, Any]
    spec: Any = None
    status: dict[str, Any] = msgspec.field(default_factory=dict)

    @property
    def type(self) -> str:
        """The short name of its type."""
        return self.schema.rpartition("/")[2]

    @property
    def name(self) -> str:
        return str(self.headers.get("name", ""))

    def condition(self, name: str) -> dict[str, Any]:
        """Returns a condition by the last part of its URI; empty if it has none of the name."""
        found: dict[str, dict[str, Any]] = self.status.get("conditions", {})
        return next((each for key, each in found.items() if key.rpartition("/")[2] == name), {})

    def state(self, form: _Type[V]) -> V:
        """Returns what only the running node knows of it."""
        return msgspec.convert(self.condition(STATE).get("value", {}), form)

    @property
    def problem(self) -> dict[str, Any]:
        """``code``, ``message``, ``hint``, ``failures`` and ``retryAt`` of the last attempt, if it failed."""
        return self.condition(PROBLEM)

    @property
    def deletion(self) -> dict[str, Any]:
        """``code`` and ``message`` of why the effects of a deleted one are not undone yet."""
        return self.condition("Deleting")

    @property
    def id(self) -> str:
        return str(self.headers.get("id", ""))

    @property
    def labels(self) -> dict[str, Any]:
        """Labels that people set."""
        found: dict[str, Any] = self.headers.get("labels", {})
        return found

    @property
    def generation(self) -> int:
        return int(self.headers.get("generation", 0))

    @property
    def updated_at(self) -> str:
        return str(self.headers.get("updatedAt", ""))


class ResourceList(Value, frozen=True, kw_only=True):
    """A page of the resources of a type."""

    resource_version: str
    """Version when the first page was read: a watch since it yields everything later."""
    items: tuple[ResourceManifest, ...]
    rest: str | None = msgspec.field(name="continue", default=None)
    """Token for the next page; ``None``: this is the last one."""
    deleting: tuple[ResourceManifest, ...] = ()
    """On the first page, for the node's owner: deleted ones whose effects are not undone yet."""


class ResourceManifestNews(Value, frozen=True, kw_only=True):
    """A line of a watch of RFC-018's paths."""

    version: str = msgspec.field(name="rv")
    op: Literal["Added", "Modified", "Deleted", "Bookmark", "Reset"]
    """``Reset`` is the last: the watcher's rights changed, and it must begin anew, without a version."""
    object: ResourceManifest | None = None


class GraphqlRequest(Request, frozen=True, kw_only=True):
    """The body of a request over HTTP, as GraphQL specifies it."""

    query: str
    variables: dict[str, Any] | None = None
    operation_name: str | None = None
    extensions: dict[str, Any] | None = None
    """Accepted and ignored."""


class GraphqlAnswer(Value, frozen=True, kw_only=True, omit_defaults=True):
    """Data, and errors for the missing parts; an error has the members of a problem in its ``extensions``."""

    data: dict[str, Any] | None = None
    errors: tuple[dict[str, Any], ...] = ()


class PushReceipt(Value, frozen=True, kw_only=True):
    """The answer to a push to the endpoint of a Source."""

    source: str
    number: int
    """Number of the push, from 1, in the order of arrival."""
    records: int
    bytes: int
    repeated: bool = False
    """Whether it was received before, with the same id; it counts once."""
    durable: bool = True
    """Whether it is on disk; else it waits in a buffer that may be lost."""


class EndpointView(Value, frozen=True, kw_only=True):
    """The pushes that wait at the endpoint of a Source."""

    name: str
    path: str
    """Path to POST to."""
    pushes: int
    records: int
    bytes: int
    first: int | None = None
    last: int | None = None
    oldest_at: str | None = None
    dropped: int = 0
    """Records that were dropped before a dataset got them: by a full buffer, or by a person."""

"""Values about types of resources."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from odfd.control.wire.value import Request, Value


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
    """Of one that does not act: what does its work."""


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
    """Of the part; empty: the whole."""
    type: str
    description: str
    fields: tuple[FieldView, ...]
    example: str = ""
    """A manifest, where it is explained as a whole."""


class ResourceView(Value, frozen=True, kw_only=True):
    """A declared resource."""

    type: str
    name: str
    schema: str
    """The URI of its type."""
    headers: dict[str, Any]
    spec: Any = None
    """``None``: it came by other ways than a manifest of its type."""
    id: str
    labels: dict[str, Any]
    generation: int
    updated_at: str
    system_labels: dict[str, str] = msgspec.field(default_factory=dict)
    """Labels that the controller of its type contributes: selected by as others are, and in no manifest."""
    status: dict[str, Any] = msgspec.field(default_factory=dict)
    """``phase``, ``observedGeneration``, ``conditions``: what became of it."""


class LabelRequest(Request, frozen=True, kw_only=True):
    """Labels and annotations to set; ``null`` takes one away."""

    labels: dict[str, Any] = msgspec.field(default_factory=dict)
    annotations: dict[str, Any] = msgspec.field(default_factory=dict)


class AccountView(Value, frozen=True, kw_only=True):
    """The account that asks."""

    name: str | None = None
    """Of the account; ``null``: the node's owner, or a caller whom no account names."""
    id: str | None = None
    node_owner: bool = False
    """Has every right."""
    organizations: tuple[str, ...] = ()
    """Whose rights the account has as a member."""


class TokenRequest(Request, frozen=True, kw_only=True):
    """A token of the account that asks."""

    role: Literal["reader", "editor", "maintainer", "owner"] = "owner"
    """That it has at the most, on anything; the account has no more by it than without."""
    expires: str = "30d"
    """How long it is good for: at most 366d."""
    note: str = ""
    """For people: where it is used."""


class TokenView(Value, frozen=True, kw_only=True):
    """A token of an account."""

    id: str
    account: str
    """Its name."""
    role: str
    """That it has at the most."""
    created_at: str
    expires_at: str
    note: str = ""
    token: str | None = None
    """The token itself, in the answer that makes it alone."""


class SecretKey(Value, frozen=True, kw_only=True):
    """The public key, as a JWK, that secrets are sealed to for a node (``odfctl secret seal``)."""

    kty: str
    crv: str
    x: str
    kid: str


class SecretRotation(Value, frozen=True, kw_only=True):
    """The re-encryption of a node's secrets to a new key."""

    values: int
    """That are sealed to it."""


class ResourceChange(Value, frozen=True, kw_only=True):
    """A row of ``odfctl events``: one event of the log of resources."""

    version: str
    """Of the log, to go on from."""
    time: str
    type: str
    name: str
    id: str
    generation: int
    change: str
    """``Created``, ``Changed``, ``Deleted``; of a status the phase that it came to, or ``Observed``."""
    details: tuple[str, ...] = ()


class ResourceNews(Value, frozen=True, kw_only=True):
    """A line of a watch: a change, or a bookmark after the initial state."""

    version: str
    """To go on from: a watch since it tells what comes after."""
    op: Literal["Added", "Modified", "Deleted", "Bookmark", "Reset"]
    """``Reset`` is the last: rights of who watches have changed, and they begin anew, without a version."""
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

    @property
    def id(self) -> str:
        return str(self.headers.get("id", ""))

    @property
    def labels(self) -> dict[str, Any]:
        """Those that people set."""
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
    """When its first page was read: a watch since it tells what comes after."""
    items: tuple[ResourceManifest, ...]
    rest: str | None = msgspec.field(name="continue", default=None)
    """Asks for the next page; ``None``: this is the last one."""


class ResourceManifestNews(Value, frozen=True, kw_only=True):
    """A line of a watch of RFC-018's paths."""

    version: str = msgspec.field(name="rv")
    op: Literal["Added", "Modified", "Deleted", "Bookmark", "Reset"]
    """``Reset`` is the last: rights of who watches have changed, and they begin anew, without a version."""
    object: ResourceManifest | None = None


class GraphqlRequest(Request, frozen=True, kw_only=True):
    """The body of a request over HTTP, as GraphQL specifies it."""

    query: str
    variables: dict[str, Any] | None = None
    operation_name: str | None = None
    extensions: dict[str, Any] | None = None
    """Nothing is read of it."""


class GraphqlAnswer(Value, frozen=True, kw_only=True, omit_defaults=True):
    """Data, and what of it could not be had; an error has the members of a problem in its ``extensions``."""

    data: dict[str, Any] | None = None
    errors: tuple[dict[str, Any], ...] = ()

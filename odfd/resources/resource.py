"""Defines a resource as a value: what people declared, what it refers to, who owns it, and what became of it. Pure."""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, TypeAlias

import msgspec

from chain.ids import DatasetId
from chain.instant import Instant
from odfd.resources.status import ResourceStatus

Json: TypeAlias = Any
ACCOUNT: Final = "Account"
UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z", re.IGNORECASE)
"""The form of an id, which no name has."""
Op: TypeAlias = Literal["Added", "Modified", "Deleted", "Observed"]
"""The kind of an event; ``Observed`` changes only the status, or what references are resolved to."""


class ResourceHandle(msgspec.Struct, frozen=True):
    """The resource that a reference is resolved to. Its did also finds a resource that was deleted and made again."""

    id: str
    name: str
    """The present name of the resource."""
    did: str | None = None


class OwnerReference(msgspec.Struct, frozen=True, kw_only=True):
    """An owner of a resource, which is deleted with the last of its owners."""

    id: str
    type: str
    name: str
    part: str | None = ""
    """Identifies the part of the owner that the resource is; ``None`` if it is none, as a run of a flow."""


class Resource(msgspec.Struct, frozen=True, kw_only=True):
    """A resource. ``spec`` is plain JSON; ``None`` if nobody declared it, as a dataset that was pulled."""

    id: str
    type: str
    name: str
    did: str | None = None
    """Identifies the object that it stands for: a did, or the id of a peer. Unique in its type."""
    account: str | None = None
    """Id of the Account that owns it; ``None`` for the node's owner."""
    labels: Mapping[str, Json] = {}
    annotations: Mapping[str, Json] = {}
    managers: Mapping[str, str] = {}
    """Who set ``labels.KEY``, ``annotations.KEY`` or ``spec``, if that was not a plain apply of manifests."""
    spec: Json = None
    references: Mapping[str, ResourceHandle | None] = {}
    """What its references are resolved to, by ``references.reference_key``; ``None`` if a target never existed here."""
    owners: tuple[OwnerReference, ...] = ()
    """The resources that made it; empty if people declared it."""
    generation: int = 1
    status: ResourceStatus = ResourceStatus()
    """Written only by ``ResourceStore.observe``."""
    created_at: Instant
    updated_at: Instant

    @property
    def key(self) -> str:
        """The name, as names are compared."""
        return self.name.casefold()


class ResourceEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One change of a resource; for a deletion with its last state."""

    rv: int
    at: Instant
    op: Op
    resource: Resource


def handle_of(resource: Resource) -> ResourceHandle:
    return ResourceHandle(resource.id, resource.name, resource.did)


_CANONICAL: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def canonical(value: Json) -> str:
    """Encodes a value as its canonical JSON text, by which labels are compared."""
    return _CANONICAL.encode(value)


def fold(events: Iterable[ResourceEvent]) -> dict[str, Resource]:
    """Returns the resources after all events, by id."""
    found: dict[str, Resource] = {}
    for event in events:
        if event.op == "Deleted":
            found.pop(event.resource.id, None)
        else:
            found[event.resource.id] = event.resource
    return found


def account_did(resource_id: str, spec: Json = None) -> str:
    """Returns the did that an account states, or else one that is as unique as its id, to which nobody has a key."""
    if spec is not None and spec.get("did") is not None:
        return str(spec["did"])
    return str(DatasetId.from_public_key(hashlib.sha256(f"account {resource_id}".encode()).digest()))


def account_handle(resource_id: str, name: str, spec: Json = None) -> dict[str, str]:
    """Returns how an account is shown where it is named."""
    return {"id": resource_id, "did": account_did(resource_id, spec), "name": name}


def derived_id(*parts: str) -> str:
    """Returns an id that is always the same for the same parts, and no other's."""
    digest = hashlib.sha256("\n".join(parts).encode()).digest()
    return str(uuid.UUID(bytes=digest[:16], version=4))

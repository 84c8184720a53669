"""Shows declared resources as the API's clients see them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chain import instant
from odfd.control import wire
from odfd.resources.registry import OURS, VERSION
from odfd.resources.resource import Resource, ResourceHandle
from odfd.resources.status import COMMON, ResourceStatus, shown
from odfd.resources.types import ResourceType


def view_of(
    each: Resource, kind: ResourceType, system: Mapping[str, str], account: Mapping[str, str] | None
) -> wire.ResourceView:
    """Returns a resource as it is shown.

    ``system``: labels that the controller of its type contributes. ``account``: id and name of the account that owns
    it.
    """
    headers: dict[str, Any] = {"id": each.id, "name": each.name}
    headers |= {"did": each.did} if kind.name == "Dataset" and each.did is not None else {}
    headers |= {"account": dict(account)} if account is not None else {}
    headers |= {"labels": dict(each.labels)} if each.labels else {}
    headers |= {"annotations": dict(each.annotations)} if each.annotations else {}
    headers |= {"ownerReferences": [{"id": one.id, "name": one.name} for one in each.owners]} if each.owners else {}
    headers |= {
        "generation": each.generation,
        "createdAt": instant.render(each.created_at),
        "updatedAt": instant.render(each.updated_at),
    }
    status = shown(each.status, _uris(kind, each.status))
    status |= {"references": [_reference_view(*one) for one in each.references.items()]} if each.references else {}
    return wire.ResourceView(
        type=kind.name, name=each.name, schema=kind.schema_of(each.spec), headers=headers, spec=each.spec, id=each.id,
        status=status,
        labels=dict(each.labels), system_labels=dict(system),
        generation=each.generation, updated_at=instant.render(each.updated_at),
    )  # fmt: skip


def _uris(kind: ResourceType, status: ResourceStatus) -> Mapping[str, str]:
    """Returns the URIs of a status's conditions; some are common to all resources."""
    return {key: f"{OURS}/{'resource' if key in COMMON else kind.context}/{VERSION}/{key}" for key in status.conditions}


def _reference_view(key: str, held: ResourceHandle | None) -> dict[str, str]:
    """Returns the resource that a reference is resolved to, or only the reference if it never was."""
    if held is None:
        return {"reference": key}
    did = {"did": held.did} if held.did is not None and held.did.startswith("did:") else {}
    return {"reference": key, "type": key.partition(":")[0], "id": held.id, "name": held.name, **did}

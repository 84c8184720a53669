"""Shows declared resources as the API's clients see them.

Services and reconcilers read views; what leaves the node is RFC-018's canonical form, valid by its JSON Schemas. What
these have no field for, such as the labels that the node sets, stands among the conditions.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias

import msgspec

from chain import instant
from odfd.control import wire
from odfd.resources.references import with_names
from odfd.resources.registry import ODF, OURS, STATE, VERSION
from odfd.resources.resource import Resource, ResourceHandle
from odfd.resources.status import COMMON, DELETING, ResourceStatus, show
from odfd.resources.types import ResourceType

GetResource: TypeAlias = Callable[[str, str], Awaitable[wire.ResourceView]]
"""Returns a resource by its type and its name."""
_COMMON: Final = f"{OURS}/resource/{VERSION}"
_OWNERS: Final = "ownerReferences"
_STATUS: Final = ("phase", "observedGeneration", "reconciledAt")
"""Fields of a status that the format has, beside the conditions."""
_FORMATS: Final = {"Outcome": f"{ODF}/tasks/{VERSION}/TaskOutcome"} | {
    each: f"{ODF}/flows/{VERSION}/{each}" for each in ("FlowRunStatus", "FlowRunActivationCauses", "FlowRunRetry")
}
"""Conditions that the format has, by their names."""
_PROBLEM: Final = ("code", "message", "hint", "failures", "retryAt")
"""Fields of a status that say why the last attempt failed."""


def view_of(
    each: Resource, kind: ResourceType, system: Mapping[str, str], account: Mapping[str, str]
) -> wire.ResourceView:
    """Returns a resource as it is shown.

    ``system``: labels that the controller of its type contributes. ``account``: the handle of the account that owns it.
    """
    headers: dict[str, Any] = {"id": each.id, "name": each.name}
    headers |= {"did": each.did} if kind.name == "Dataset" and each.did is not None else {}
    headers |= {"account": dict(account)} if each.account is not None else {}
    headers |= {"labels": dict(each.labels)} if each.labels else {}
    headers |= {"annotations": dict(each.annotations)} if each.annotations else {}
    headers |= {_OWNERS: [{"id": one.id, "name": one.name} for one in each.owners]} if each.owners else {}
    headers |= {
        "generation": each.generation,
        "createdAt": instant.render(each.created_at),
        "updatedAt": instant.render(each.updated_at),
    }
    if (gone := each.status.conditions.get(DELETING)) is not None:
        headers["deletedAt"] = instant.render(gone.updated_at)
    status = show(each.status, _uris(kind, each.status))
    spec = None if each.spec is None else with_names(kind.layout, each.spec, each.references)
    status |= {"references": [_reference_view(*one) for one in each.references.items()]} if each.references else {}
    return wire.ResourceView(
        type=kind.name, name=each.name, schema=kind.schema_of(each.spec), headers=headers, id=each.id,
        spec=spec if kind.shows is None or spec is None else kind.shows(spec),
        status=status,
        labels=dict(each.labels), system_labels=dict(system),
        generation=each.generation, updated_at=instant.render(each.updated_at), account=dict(account),
    )  # fmt: skip


def with_state(view: wire.ResourceView, state: wire.Value) -> wire.ResourceView:
    """Returns a resource as it is shown with what only the running node knows of it."""
    value = {key: each for key, each in msgspec.to_builtins(state).items() if each is not None}
    conditions = {**view.status.get("conditions", {}), f"{_COMMON}/{STATE}": {"value": value}}
    return msgspec.structs.replace(view, status=view.status | {"conditions": conditions})


def manifest_of(view: wire.ResourceView) -> wire.ResourceManifest:
    """Returns a resource in RFC-018's canonical form. Applied again where it is from, it changes nothing."""
    headers = {"id": view.id, "name": view.name, "account": view.account, "labels": {}, "annotations": {}}
    headers |= {key: value for key, value in view.headers.items() if key not in ("did", _OWNERS)}
    did = view.headers.get("did")
    spec = view.spec if did is None else {"did": did, **(view.spec or {})}
    status = {key: view.status[key] for key in _STATUS if key in view.status}
    return wire.ResourceManifest(
        schema=view.schema, headers=headers, spec=spec, status=status | {"conditions": _conditions(view)}
    )


def _conditions(view: wire.ResourceView) -> dict[str, Any]:
    """Returns the conditions of a resource, and as such also what only this node tells."""
    problem: dict[str, Any] = {key: view.status[key] for key in _PROBLEM if key in view.status}
    told: dict[str, Any] = {
        wire.OWNERS: view.headers.get(_OWNERS),
        wire.REFERENCES: view.status.get("references"),
        wire.SYSTEM_LABELS: view.system_labels,
    }
    beside = {f"{_COMMON}/{key}": {"value": value} for key, value in told.items() if value}
    beside |= {f"{_COMMON}/{wire.PROBLEM}": {"value": True} | problem} if problem else {}
    return {**view.status.get("conditions", {}), **beside}


def _uris(kind: ResourceType, status: ResourceStatus) -> Mapping[str, str]:
    """Returns the URIs of a status's conditions; some are common to all resources."""
    uris = {key: f"{OURS}/{'resource' if key in COMMON else kind.context}/{VERSION}/{key}" for key in status.conditions}
    return uris | {key: uri for key, uri in _FORMATS.items() if key in uris}


def _reference_view(key: str, held: ResourceHandle | None) -> dict[str, str]:
    """Returns the resource that a reference is resolved to, or only the reference if it never was."""
    if held is None:
        return {"reference": key}
    did = {"did": held.did} if held.did is not None and held.did.startswith("did:") else {}
    return {"reference": key, "type": key.partition(":")[0], "id": held.id, "name": held.name, **did}

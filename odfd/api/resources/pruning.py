"""Deletes what an apply with labels leaves out: resources that a manifest made, and none names now.

Datasets, and intents to hold data of others, are deleted only by commands of their own, since it is too easy to leave a
file out.
"""

from __future__ import annotations

from collections.abc import Collection

import trio

from odfd.api.resources.declarations import DeclarationService
from odfd.api.resources.skipping import terms_of
from odfd.api.resources.types import TYPES
from odfd.control import wire


async def prune(
    declarations: DeclarationService, request: wire.ApplyRequest, named: Collection[tuple[str, str]]
) -> list[wire.ApplyItem]:
    """Deletes what has the labels of a request and its manager wrote for the node's owner; returns an item for each.

    ``named``: types and names in lower case of those that the apply names. Raises Invalid for a bad selector.
    """
    items, manager = [], terms_of(request).manager
    writers = await declarations.writers()
    owner = await trio.to_thread.run_sync(lambda: declarations.owner["id"])
    for each in await declarations.list(None, request.prune):
        if (each.type, each.name.casefold()) in named or each.spec is None:
            continue
        if each.account["id"] != owner:  # what an account has is not in the owner's manifests
            continue
        if "ownerReferences" in each.headers:  # it is deleted with its owner
            continue
        kind = each.type.lower()
        wrote = writers.get(each.id, manager)
        if not TYPES.named(each.type).is_pruned or wrote != manager:
            by = f"{wrote} wrote it, and not {manager}: " if wrote != manager else ""
            text = f"{by}it is not pruned: odfctl delete {kind} {each.name}"
            items.append(wire.ApplyItem(kind=kind, name=each.name, action="unchanged", id=each.id, warnings=(text,)))
            continue
        if not request.dry_run:
            await declarations.delete(each.type, each.id)
        items.append(wire.ApplyItem(kind=kind, name=each.name, action="deleted", id=each.id))
    return items

"""Makes the items of an apply's result, which say what it did or would do. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from odfd.control import wire
from odfd.resources.plan import PlannedResource


def refused(items: Sequence[wire.ApplyItem], others: Sequence[PlannedResource]) -> wire.ApplyResult:
    """Returns the result of an apply of which nothing was done because one part failed; the others are skipped."""
    kept = [each if each.action == "failed" else msgspec.structs.replace(each, action="skipped") for each in items]
    kept += [wire.ApplyItem(kind=each.after.type.lower(), name=each.after.name, action="skipped") for each in others]
    return wire.ApplyResult(items=tuple(kept))


def with_headers(items: Sequence[wire.ApplyItem], planned: Sequence[PlannedResource]) -> list[wire.ApplyItem]:
    """Adds the changes of headers to items, and counts an item with such a change as updated."""
    plans = {(each.after.type.lower(), each.after.name.casefold()): each for each in planned}
    told = []
    for item in items:
        plan = plans.get((item.kind, item.name.casefold()))
        if plan is not None and item.kind == "flow" and item.warnings:  # it waits: only its declaration exists
            item = msgspec.structs.replace(item, action=plan.action, id=plan.after.id)
        more = tuple(each for each in plan.changes if " spec." not in each) if plan is not None else ()
        if more and item.action in ("unchanged", "updated"):
            item = msgspec.structs.replace(item, action="updated", changes=(*item.changes, *more))
        told.append(item)
    return told


def declared_item(planned: PlannedResource) -> wire.ApplyItem:
    """Returns the item for a resource that only has to be stored."""
    return wire.ApplyItem(
        kind=planned.after.type.lower(), name=planned.after.name, action=planned.action, id=planned.after.id,
        changes=planned.changes,
    )  # fmt: skip


def with_warnings(item: wire.ApplyItem, warnings: Mapping[tuple[str, str], tuple[str, ...]]) -> wire.ApplyItem:
    """Adds the warnings from reading its manifest to an item."""
    more = warnings.get((item.kind, item.name.casefold()), ())
    return msgspec.structs.replace(item, warnings=(*more, *item.warnings)) if more else item


def successful(items: Sequence[wire.ApplyItem], planned: Sequence[PlannedResource]) -> list[PlannedResource]:
    """Returns the planned resources to record: all whose items did not fail, nor those of the same dataset."""
    failed = {(each.kind, each.name.casefold()) for each in items if each.action == "failed"}
    is_failed = [(each.after.type.lower(), each.after.key) in failed for each in planned]
    dids = {each.after.did for each, fails in zip(planned, is_failed, strict=True) if fails} - {None}
    return [each for each, fails in zip(planned, is_failed, strict=True) if not fails and each.after.did not in dids]

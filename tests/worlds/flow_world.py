"""Flows of a node, as its API shows them."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from odfd.control import wire
from odfd.flows.plan import EVERY
from odfd.flows.scheduler import Entry
from odfd.resources import registry
from odfd.services.resources.views import manifest_of


class ShownFlow(NamedTuple):
    """A flow that is in force, or a dataset that follows its inputs; it has the fields of its state too."""

    name: str
    account: str | None
    is_declared: bool
    target: str
    tasks: tuple[str, ...]
    told: wire.FlowState

    def __getattr__(self, name: str) -> Any:
        return getattr(self.told, name)


async def flows(node: Any) -> list[ShownFlow]:
    """Returns the flows in force, and the datasets that follow their inputs, by name."""
    page = await node.api.declarations.page("Flow", None, 500, None)
    return [made for each in await node.api.declarations.stated(page.views) if (made := _shown(each)) is not None]


async def flow_of(node: Any, name: str) -> ShownFlow:
    """Returns a flow that is in force, or a dataset that follows its inputs, by its name or ``account/name``."""
    (view,) = await node.api.declarations.stated([await node.api.declarations.get("Flow", name)])
    found = _shown(view)
    assert found is not None, f"{name} is not in force"
    return found


class ShownTask(NamedTuple):
    """A task; it has the fields of its state too."""

    id: str
    name: str
    account: str | None
    is_declared: bool
    told: wire.TaskState

    def __getattr__(self, name: str) -> Any:
        return getattr(self.told, name)


async def tasks(node: Any) -> list[ShownTask]:
    """Returns the tasks of a node, by name."""
    page = await node.api.declarations.page("Task", None, 500, None)
    return [
        ShownTask(
            each.id, each.name, each.headers.get("account", {}).get("name"), bool(each.generation),
            msgspec.convert(registry.condition_value(manifest_of(each), registry.STATE), wire.TaskState),
        )
        for each in await node.api.declarations.stated(page.views)
    ]  # fmt: skip


def entries(node: Any, name: str) -> dict[str, Entry]:
    """Returns what the scheduler has of the datasets of a flow of many, by their names."""
    with node.home.catalog() as catalog:
        return {
            catalog.name_of(each.plan.target): each
            for _, each in node.parts.flows.scheduler.entries()
            if each.plan.name == name and each.plan.target != EVERY
        }


def _shown(found: wire.ResourceView) -> ShownFlow | None:
    view = manifest_of(found)
    told = registry.condition_value(view, registry.STATE)
    if told is None:
        return None
    target, tasks = (str(each.of(view)) for each in registry.FLOW.columns if each.title in ("TARGET", "TASKS"))
    account = found.headers.get("account", {}).get("name")
    return ShownFlow(
        view.name,
        account,
        bool(view.generation),
        target,
        tuple(tasks.split(", ")),
        msgspec.convert(told, wire.FlowState),
    )

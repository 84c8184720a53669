"""Makes the functions that list undeclared resources: the node, its engines and tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from odfd.api.datasets.declared_tasks import live_tasks
from odfd.api.maintenance.own_resources import OwnResources
from odfd.api.resources.node_types import ENGINE, NODE
from odfd.flows.tasks import TYPE
from odfd.node.parts import NodeParts
from odfd.resources.resource import Resource


def own_resources_of(parts: NodeParts) -> Mapping[str, Callable[[], Sequence[Resource]]]:
    """Returns the functions that list undeclared resources, by type."""
    context, node, now = parts.context, str(parts.home.keys.node_key().did), parts.context.clock.now()
    own = OwnResources(
        parts.settings, node, now, parts.engine.view,
        lambda: parts.readers.sandbox, lambda: _reached(parts),
    )  # fmt: skip
    return {NODE: own.nodes, ENGINE: own.engines, TYPE: live_tasks(context.board, node, now)}


def _reached(parts: NodeParts) -> dict[str, Any]:
    """Returns the ids and addresses at which others reach the node, its version, and its networks."""
    served = {"http": parts.site, "flight": parts.flight, "api": parts.remote}
    urls = {key: list(server.urls) for key, server in served.items() if server is not None}
    return {
        "peerId": parts.membership.peer_id,
        "version": parts.context.version,
        "listen": list(parts.membership.addresses()),
        "networks": [each.name for each in parts.membership.networks],
        **urls,
    }

"""Makes the functions that list undeclared resources: the node, its engines, tasks, peers, validators of settings."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

import msgspec

from chain.ids import DID_KEY
from odfd.control import wire
from odfd.flows.tasks import TYPE
from odfd.network.joined_networks import PEER
from odfd.node.parts import NodeParts
from odfd.policy.manifest import ValidatorResourceSpec
from odfd.policy.profiles import policy_of
from odfd.resources.resource import Resource
from odfd.resources.status import ResourceStatus
from odfd.services.flows.service import FlowService
from odfd.services.maintenance.own_resources import OwnResources
from odfd.services.network.network_types import PeerResourceSpec
from odfd.services.resources.node_types import ENGINE, NODE, live_id, live_resource
from odfd.services.tasks.declared_tasks import live_tasks
from odfd.services.trust.effective_policy import VALIDATOR
from odfd.store.flow_runs import TYPE as FLOW


def own_of(parts: NodeParts) -> OwnResources:
    now = parts.context.clock.now()
    reached = partial(_describe_reach, parts)
    return OwnResources(parts.home, parts.settings, now, parts.engine.view, parts.readers, reached)


def live_resources_of(
    parts: NodeParts, own: OwnResources, flows: FlowService
) -> Mapping[str, Callable[[], Awaitable[Sequence[Resource]]]]:
    """Returns the functions that list undeclared resources, by type."""
    context, node, now = parts.context, str(parts.home.keys.node_key().did), parts.context.clock.now()

    async def peers() -> Sequence[Resource]:
        """Lists the known peers of which nothing is declared."""
        met = [each.peer for each in parts.membership.peers() if not each.blocked]
        return [live(PEER, each, each, PeerResourceSpec(peer_id=each, blocked=False)) for each in met]

    async def validators() -> Sequence[Resource]:
        """Lists the validators that the settings name."""
        groups = policy_of(parts.settings.policy).groups
        named = [(group.name, str(key)) for group in groups for key in sorted(group.keys)]
        return [
            live(VALIDATOR, did.removeprefix(DID_KEY), did, ValidatorResourceSpec(did=did, group=group))
            for group, did in named
        ]

    def live(type_: str, name: str, did: str, spec: msgspec.Struct) -> Resource:
        status = ResourceStatus(phase="Ready")
        return live_resource(type_, name, live_id(node, type_, did), spec, status, now, did)

    return {
        NODE: own.nodes, ENGINE: own.engines, TYPE: live_tasks(context.board, node, now), PEER: peers,
        VALIDATOR: validators, FLOW: flows.undeclared,
    }  # fmt: skip


def _describe_reach(parts: NodeParts) -> wire.NodeState:
    urls = parts.urls()
    return wire.NodeState(
        node_id=str(parts.home.keys.node_key().did),
        peer_id=parts.membership.peer_id,
        version=parts.context.version,
        listen=tuple(parts.membership.addresses()),
        networks=tuple(each.name for each in parts.membership.networks),
        http=urls.get("http"),
        flight=urls.get("flight"),
        api=urls.get("api"),
    )

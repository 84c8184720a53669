"""Prepares planned resources that are intents: networks, peers, validators and mirrors, in the order of dependence.

They are recorded in the one transaction of an apply, and brought into force after it. After a crash in between the next
start does so, since a node begins with what is recorded.

Also deletes what an apply with labels leaves out: resources such as sets and flows that a manifest made and none names
any more. Datasets, and intents to hold data of others, are deleted only by commands of their own, since it is too easy
to leave a file out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Final

from chain.errors import Fault, Refused
from chain.ids import KeyDid
from odfd.api.network.mirrors import MirrorService
from odfd.api.network.networks import NetworkService
from odfd.api.resources.declarations import DeclarationService
from odfd.api.resources.prepared_intents import PreparedIntent
from odfd.api.resources.types import TYPES
from odfd.api.trust.service import TrustService
from odfd.control import wire
from odfd.network.joined_networks import Network
from odfd.resources.plan import PlannedResource
from p2p.ports import PeerId

ORDER: Final = ("Network", "Peer", "Validator", "Mirror")
"""Types in the order in which they are applied: peers, then trust, then mirrors."""


class IntentService:
    """Applies intents: networks, peers, validators and mirrors."""

    def __init__(self, mirrors: MirrorService, networks: NetworkService, trust: TrustService) -> None:
        self._mirrors = mirrors
        self._networks = networks
        self._trust = trust

    async def prepare(self, planned: Sequence[PlannedResource], refusals: Mapping[str, Fault]) -> list[PreparedIntent]:
        """Prepares the planned intents, and changes nothing; a failure becomes an item too.

        ``refusals``: faults of those that could not be recorded, by their keys.
        """
        intents = [each for each in planned if each.after.type in ORDER]
        ordered = sorted(intents, key=lambda one: ORDER.index(one.after.type))
        return [await self._prepare(each, refusals) for each in ordered]

    async def _prepare(self, planned: PlannedResource, refusals: Mapping[str, Fault]) -> PreparedIntent:
        after, kind = planned.after, planned.after.type.lower()
        item = wire.ApplyItem(kind=kind, name=after.name, action=planned.action, id=after.id, changes=planned.changes)
        try:
            if (refusal := refusals.get(PreparedIntent(item).key)) is not None:
                raise refusal
            if planned.action != "created" and (planned.before is None or planned.before.spec == after.spec):
                return PreparedIntent(item)
            _check_same(planned)
            return await self._prepared(item, after.type, after.spec)
        except Fault as fault:
            return PreparedIntent(
                wire.ApplyItem(kind=kind, name=after.name, action="failed", fault=wire.Problem.of(fault))
            )

    async def _prepared(self, item: wire.ApplyItem, type_: str, spec: Any) -> PreparedIntent:
        match type_:
            case "Mirror":
                return await self._mirror(item, spec)
            case "Network":
                network = Network(name=item.name, bootstrap=tuple(spec["bootstrap"]))
                self._networks.prepare(network)
                return PreparedIntent(
                    item, lambda connection: self._networks.record(connection, network), self._networks.take_up
                )
            case "Peer":
                peer = PeerId(spec["peerId"])
                return PreparedIntent(
                    item, lambda connection: self._networks.record_block(connection, peer), self._networks.take_up
                )
            case _:
                key, group = KeyDid.parse(spec["did"]), spec["group"]
                return PreparedIntent(
                    item, lambda connection: self._trust.record_validator(connection, key, group), self._trust.take_up
                )

    async def _mirror(self, item: wire.ApplyItem, spec: Any) -> PreparedIntent:
        more = {key: value for key, value in spec.items() if key != "source"}
        request = wire.MirrorRequest(source=spec["source"], as_name=item.name, **more)
        mirror = await self._mirrors.prepare(request, is_new=item.action == "created")
        return PreparedIntent(
            item,
            lambda connection: self._mirrors.record(connection, mirror),
            lambda: self._mirrors.take_up(mirror),
            (lambda: self._mirrors.adopt(mirror.spec.id, item.name)) if mirror.is_kept else None,
            mirror.spec.id,
        )


def _check_same(planned: PlannedResource) -> None:
    """Raises Refused if the resource would stand for another thing than before."""
    before = planned.before
    if any(each is not None and "policyKey" in each.spec for each in (before, planned.after)):
        text = f"{planned.after.name} is joined by an invitation, which says whose policies hold there"
        raise Refused(text, rule="immutable", hint="leave it first: odfctl network leave NAME")
    for key in ("source", "peerId", "did"):
        if before is not None and before.spec.get(key) != planned.after.spec.get(key):
            kind = planned.after.type.lower()
            text = f"the {key} of {kind} {before.name} cannot change"
            raise Refused(text, rule="immutable", hint=f"odfctl delete {kind} {before.name}, and apply it anew")


class Pruning:
    """Finds and deletes the resources that an apply left out."""

    def __init__(self, declarations: DeclarationService, delete_flow: Callable[[str], Awaitable[object]]) -> None:
        self._declarations = declarations
        self._delete_flow = delete_flow

    async def prune(
        self, selector: str, named: Collection[tuple[str, str]], *, manager: str, dry_run: bool
    ) -> list[wire.ApplyItem]:
        """Deletes resources with these labels that this manager wrote; returns an item for each found.

        ``named``: types and names in lower case of those that the apply names. Raises Invalid for a bad selector.
        """
        items = []
        writers = await self._declarations.writers()
        for each in await self._declarations.list(None, selector):
            if (each.type, each.name.casefold()) in named or each.spec is None:
                continue
            if "ownerReferences" in each.headers:  # it is deleted with its owner
                continue
            kind = each.type.lower()
            wrote = writers.get(each.id, manager)
            if not TYPES.named(each.type).is_pruned or wrote != manager:
                by = f"{wrote} wrote it, and not {manager}: " if wrote != manager else ""
                text = f"{by}it is not pruned: odfctl delete {kind} {each.name}"
                items.append(
                    wire.ApplyItem(kind=kind, name=each.name, action="unchanged", id=each.id, warnings=(text,))
                )
                continue
            if not dry_run and each.type == "Flow":
                await self._delete_flow(each.name)
            elif not dry_run:
                await self._declarations.delete(each.type, each.name)
            items.append(wire.ApplyItem(kind=kind, name=each.name, action="deleted", id=each.id))
        return items

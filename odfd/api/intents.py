"""Carries out planned resources that are intents, with the operations of commands, in the order of dependence.

Also deletes what an apply with labels leaves out: resources such as sets and flows that a manifest made and none names
any more. Datasets, and intents to hold data of others, are deleted only by commands of their own, since it is too easy
to leave a file out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, Final

from chain.errors import Fault, Refused
from odfd.api.network.mirrors import MirrorService, PeerService
from odfd.api.network.networks import NetworkService
from odfd.api.resources.declarations import DeclarationService
from odfd.api.resources.intent_types import ORDER
from odfd.api.trust.service import TrustService
from odfd.control import wire
from odfd.resources.plan import PlannedResource


class IntentService:
    """Applies intents: networks, peers, validators and mirrors."""

    def __init__(
        self, mirrors: MirrorService, networks: NetworkService, peers: PeerService, trust: TrustService
    ) -> None:
        self._mirrors = mirrors
        self._networks = networks
        self._peers = peers
        self._trust = trust

    async def apply(self, planned: Sequence[PlannedResource], *, dry_run: bool) -> list[wire.ApplyItem]:
        """Applies the planned intents; a failure becomes an item too."""
        items = []
        intents = [each for each in planned if each.after.type in ORDER]
        for each in sorted(intents, key=lambda one: ORDER.index(one.after.type)):
            items.append(await self._apply(each, dry_run=dry_run))
        return items

    async def _apply(self, planned: PlannedResource, *, dry_run: bool) -> wire.ApplyItem:
        after, kind = planned.after, planned.after.type.lower()
        try:
            if planned.action == "created" or (planned.before is not None and planned.before.spec != after.spec):
                _check_same(planned)
                await self._perform(after.type, after.name, after.spec, dry_run=dry_run)
        except Fault as fault:
            return wire.ApplyItem(kind=kind, name=after.name, action="failed", fault=wire.Problem.of(fault))
        return wire.ApplyItem(
            kind=kind, name=after.name, action=planned.action, id=after.id, changes=planned.changes
        )  # fmt: skip

    async def _perform(self, type_: str, name: str, spec: Any, *, dry_run: bool) -> None:
        match type_:
            case "Mirror":
                more = {key: value for key, value in spec.items() if key != "source"}
                request = wire.MirrorRequest(source=spec["source"], as_name=name, **more)
                await self._mirrors.check(request) if dry_run else await self._mirrors.begin(request)
            case "Network" if not dry_run:
                await self._networks.declare(wire.NetworkRequest(name=name, bootstrap=tuple(spec["bootstrap"])))
            case "Network":
                await self._networks.check(name)
            case "Peer" if not dry_run:
                await self._peers.block(spec["peerId"])
            case "Validator" if not dry_run:
                await self._trust.add_validator(wire.ValidatorRequest(key=spec["did"], group=spec["group"]))


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


PRUNED: Final = ("VariableSet", "SecretSet", "WebhookTarget", "Projection", "Flow")


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
            if each.type not in PRUNED or wrote != manager:
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

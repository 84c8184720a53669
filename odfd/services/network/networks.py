"""Joins and leaves networks, shows what is announced there, and writes invitations."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

import msgspec
import trio

from chain.errors import Fault, Invalid, NotFound, Refused, Remote
from chain.ids import DatasetId
from chain.instant import SECOND, Instant
from chain.statements.statement import HEAD, when
from odfd.control import wire
from odfd.control.operations import NODE_PATH, Owner, operation
from odfd.datasets.uncommitted_objects import SwarmCounts
from odfd.mirrors.first_contact import rung_of
from odfd.network.card_index import CardIndex
from odfd.network.invitation import (
    MAX_BOOTSTRAP,
    PATIENCE,
    Invitation,
    fetch_invitation,
    invitation_url,
    is_url,
    read_invitation,
    rule_lines,
    write_invitation,
)
from odfd.network.joined_networks import NETWORK, Network, block, check_network, keep, list_joined
from odfd.network.membership import Membership
from odfd.network.node_names import NodeNames
from odfd.network.unheld_statements import UnheldStatements
from odfd.resources.registry import VERSION
from odfd.runtime.clock import Clock
from odfd.services.judgement.effective_policy import EffectivePolicy
from odfd.services.network.contact_views import dataset_contact, network_contact
from odfd.services.peers.invitation_uses import InvitationUses
from odfd.services.peers.node_views import peer_name, publisher_node
from odfd.services.views.holder_counts import HolderCounts
from odfd.store.directory import StateDirectory
from odfd.store.ledger.log import Ledger
from odfd.store.ledger.network_policies import NetworkPolicies
from odfd.store.visibility import limit_mirrors
from p2p.address import by_peer
from p2p.ports import PeerId, PeerView
from p2p.web.site import Web

MAX_SECONDS: Final = 366 * 86_400
"""Longest time for which an invitation may hold, since later the peers that it names may be gone."""
DIAL_SECONDS: Final = 10.0
"""Seconds that a join waits for its first peers."""
OTHERS_SECONDS: Final = 1.0
"""Seconds that it waits for further ones once one of them is connected."""


def _swarm(counts: SwarmCounts) -> wire.SwarmFigures | None:
    made = wire.SwarmFigures(
        from_publishers=counts.from_publisher,
        from_mirrors=counts.from_mirrors,
        bytes_from_publishers=counts.bytes_from_publisher,
        bytes_from_mirrors=counts.bytes_from_mirrors,
        refused=counts.refused,
        offered=counts.offered,
        bytes_given=counts.bytes_given,
    )
    return None if made == wire.SwarmFigures() else made


class NetworkFacts(NamedTuple):
    """The sources of facts about networks and their nodes."""

    holders: HolderCounts
    unheld: UnheldStatements
    cards: CardIndex
    names: Callable[[], NodeNames]
    """Returns what nodes call themselves; called in a worker thread."""
    swarm: SwarmCounts
    """Counts of what was exchanged with other mirrors of the same datasets."""


class NetworkService:
    """The API service for networks."""

    def __init__(
        self,
        home: StateDirectory,
        membership: Membership,
        facts: NetworkFacts,
        effective_policy: EffectivePolicy,
        clock: Clock,
        policy_changed: Callable[[], None],
        invitations: InvitationUses,
        withdraw: Callable[[str, str], Awaitable[object]],
    ) -> None:
        """``policy_changed`` is called when joining or leaving may have changed the policy in force.

        ``withdraw``: deletes a resource, given its type and name.
        """
        self._home, self._visibility, self._facts = home, home.visibility, facts
        self._membership = membership
        self._effective_policy = effective_policy
        self._clock = clock
        self._policy_changed = policy_changed
        self._invitations, self._withdraw = invitations, withdraw
        self._web = partial(Web, PATIENCE)
        """Fetches invitations that are published as files."""

    @operation(needs=Owner.NETWORK)
    async def accept(self, request: wire.InvitationText) -> Network:
        """Joins the network of an invitation, by its text. Raises as ``join``."""
        name = read_invitation(request.text, self._clock.now()).network
        return await self.join(wire.NetworkRequest(name=name, invitation=request.text))

    async def join(self, request: wire.NetworkRequest) -> Network:
        """Joins a network. Raises Invalid; Refused for an expired invitation or an unexpected policy key.

        An invitation with a token is redeemed at the node that invites: raises Refused with its answer, or Remote if it
        is not reached; then the membership is what it was before.
        """
        before = self._membership.find(request.name)
        network = await self.declare(request)
        if request.invitation is not None:
            await self._show_token(read_invitation(request.invitation, self._clock.now()), network, before)
        await self._dial(network.bootstrap)
        return network

    async def _dial(self, addresses: Sequence[str]) -> None:
        """Dials first peers, all at once, each by all its addresses; once one answers, waits a moment for the others.

        Dialling goes on in the background; the view shows how many are connected.
        """
        with trio.move_on_after(DIAL_SECONDS) as patience:
            async with trio.open_nursery() as nursery:

                async def dial(addresses: Sequence[str]) -> None:
                    with suppress(Remote):
                        await self._membership.connect(*addresses)
                        patience.deadline = min(patience.deadline, trio.current_time() + OTHERS_SECONDS)

                for of_one in by_peer(addresses):
                    nursery.start_soon(dial, of_one)

    async def _show_token(self, said: Invitation, network: Network, before: Network | None) -> None:
        try:
            await self._invitations.show_token(said)
        except Fault:
            if before is None:
                await self._withdraw(NETWORK, network.name)
            else:
                await self._membership.join(before)
                self._policy_changed()
            raise

    @operation("GET", NODE_PATH + "/invitations", needs=Owner.NETWORK)
    def invitations(self) -> Sequence[wire.InvitationState]:
        """Lists the invitations with tokens that this node made, the newest first."""
        return self._invitations.list(self._facts.names())

    @operation("DELETE", NODE_PATH + "/invitations/{id}", needs=Owner.NETWORK)
    def revoke(self, id_: str) -> wire.InvitationState:
        """Revokes an invitation: it can no longer be redeemed, and nodes that did lose their reserved connection.

        Raises NotFound, Invalid.
        """
        return self._invitations.revoke(id_, self._facts.names())

    async def declare(self, request: wire.NetworkRequest) -> Network:
        """Joins a network without waiting for a peer; peers are dialled in the background. Raises as ``join``."""
        network = Network(name=request.name, bootstrap=request.bootstrap)
        if request.invitation is not None:
            network = self._read_terms(read_invitation(request.invitation, self._clock.now()), request.name)
        await trio.to_thread.run_sync(self._limit, network)
        await self._membership.join(network)
        if network.policy_key or len(self._membership.networks) > 1:
            self._policy_changed()
        return network

    def _limit(self, network: Network) -> None:
        """Keeps mirrors in the network that they were found in, before a second network is joined."""
        before = self._membership.networks
        if len(before) == 1 and before[0].name != network.name:
            self._visibility.limit_mirrors(before[0].name, self._clock.now())

    def prepare(self, network: Network) -> None:
        """Raises Invalid; Refused if one more network would be more than a node may join."""
        check_network(network)
        self._membership.check_room(network.name)

    def record(self, connection: sqlite3.Connection, network: Network) -> None:
        """Records a network to join in the transaction of others; ``take_up`` follows. Raises Refused."""
        before = list_joined(connection) or self._membership.networks
        if len(before) == 1 and before[0].name != network.name:
            limit_mirrors(connection, before[0].name, self._clock.now())
        keep(connection, network, self._clock.now())

    def record_block(self, connection: sqlite3.Connection, peer: PeerId) -> None:
        """Records in the transaction of others that a peer is blocked; ``take_up`` follows."""
        block(connection, peer, self._clock.now())

    async def take_up(self) -> None:
        """Joins the networks and blocks the peers that were recorded. Raises Environment if the host cannot listen."""
        await self._membership.reload()
        if len(self._membership.networks) > 1:
            self._policy_changed()

    def _read_terms(self, said: Invitation, name: str) -> Network:
        if said.network != name:
            raise Invalid(f"the invitation is to {said.network}, not to {name}", rule="invitation")
        named = self._effective_policy.key_in(None)
        if named is not None and said.policy_key not in (named, None):
            raise Refused(
                f"by the settings policies of {named} hold on this node, and in {said.network} those of "
                f"{said.policy_key}",
                rule="network-policy",
                hint="take policy.network-key out of the settings, and each network's policy holds for what is met in "
                "it; or join with --bootstrap, to keep it",
            )
        return Network(
            name=said.network, bootstrap=said.bootstrap, policy_key=str(said.policy_key or ""), invited_by=str(said.by)
        )

    @operation("POST", f"/net/{VERSION}/networks/{{name}}/invitations", needs=Owner.NETWORK)
    def invite(self, name: str, request: wire.InvitationRequest) -> wire.InvitationView:
        """Makes an invitation: a line, signed by this node, by which others join the network.

        Raises NotFound, Refused, Invalid.
        """
        network = self._find_network(name)
        bootstrap = self._membership.bootstrap(network)[:MAX_BOOTSTRAP]
        if not bootstrap:
            raise Refused(
                "this node listens nowhere, and knows no peer to be met first",
                rule="invitation",
                hint="say where to listen in the settings: [p2p] listen, or announce behind a router",
            )
        if not 0 < request.seconds <= MAX_SECONDS:
            raise Invalid(
                f"an invitation for {request.seconds:,} seconds", rule="invitation", hint="a second to a year"
            )
        key = self._home.keys.node_key()
        with self._home.database.read() as connection:
            kept = NetworkPolicies(connection)
            holds = self._effective_policy.key_in(network)
            if holds is None and any(each.said.network == network.name for each in kept.of(key.did)):
                holds = key.did
            known = [] if holds is None else kept.of(holds)
        said = Invitation(
            network=network.name,
            bootstrap=tuple(bootstrap),
            by=key.did,
            expires_at=when(Instant(self._clock.now() + request.seconds * SECOND)),
            policy_key=holds,
            rules=known[-1].said.policy if known else None,
        )
        if request.uses is not None:
            if not said.inviters():
                raise Refused(
                    "this node listens nowhere, and it alone can redeem its tokens",
                    rule="invitation",
                    hint="say where to listen in the settings: [p2p] listen; or leave --uses out",
                )
            token = self._invitations.issue(network.name, request.uses, request.seconds)
            said = msgspec.structs.replace(said, token=token, uses=request.uses)
        return _view(said, write_invitation(said, key))

    @operation("POST", NODE_PATH + "/invitations", needs=Owner.NETWORK)
    async def invitation(self, request: wire.InvitationText) -> wire.InvitationView:
        """Shows the contents of an invitation before it is accepted. Raises Invalid, Refused.

        An invitation named by its address on the web is fetched first, which may also raise Remote and NotFound.
        """
        text = request.text
        if is_url(text):
            url = invitation_url(text)
            async with self._web() as web:
                text = await fetch_invitation(url, web)
        return _view(read_invitation(text, self._clock.now()), "".join(text.split()))

    async def left(self, name: str) -> None:
        """Leaves a network that is declared no longer. Raises Environment if the host cannot go on."""
        left = await self._membership.leave(name)
        if left is not None and (left.policy_key or self._membership.networks):
            self._policy_changed()

    async def unblocked(self) -> None:
        """Blocks none but the peers of which that is declared."""
        await self._membership.unblock()

    def peers_in(self, name: str) -> Sequence[PeerView] | None:
        """Lists the connected peers in a network; ``None`` if this node is not in it."""
        network = self._membership.find(name)
        return None if network is None else self._list_connected(network)

    def _list_connected(self, network: Network) -> Sequence[PeerView]:
        return [view for view in self._membership.peers() if view.connected and self._is_in(view, network)]

    def _find_network(self, name: str) -> Network:
        network = self._membership.find(name)
        if network is None:
            raise NotFound(f"this node is not in the network {name}", rule="network", hint="odfctl network list")
        return network

    async def state(self, name: str) -> wire.NetworkState:
        """Shows a network that this node is in: the datasets that are public here or that a peer serves.

        The ledger also has heads of private datasets, which are not shown. Raises NotFound.
        """
        network = self._find_network(name)
        peers = self._list_connected(network)
        traffic = self._membership.peer_traffic()
        lines = [line for view in peers if (line := traffic.get(view.peer)) is not None]
        names, datasets, rungs = await trio.to_thread.run_sync(self._list_announced, network)
        return wire.NetworkState(
            peers=len(peers),
            datasets=datasets,
            contact=network_contact(network, rungs, {view.network for view in peers if view.network}),
            members=tuple(peer_name(view.peer, names) for view in peers),
            received_rate=round(sum(line.down for line in lines), 1),
            sent_rate=round(sum(line.up for line in lines), 1),
            swarm=_swarm(self._facts.swarm),
            trouble=None if (failure := self._membership.failure) is None else wire.Problem.of(failure),
            note=self._membership.note,
        )

    def _is_in(self, peer: PeerView, network: Network) -> bool:
        return len(self._membership.networks) == 1 or network.name in peer.networks

    def _find_signed(self, network: Network) -> tuple[Sequence[DatasetId], Collection[DatasetId]]:
        """Returns the datasets of which a signed head is known, and those of them that are public."""
        with self._home.database.read() as connection:
            signed = {*Ledger(connection).datasets(HEAD), *self._facts.unheld.datasets()}
        if len(self._membership.networks) == 1:
            return tuple(signed), self._visibility.told_of(signed)
        here = self._visibility.within(network.name)(signed)
        return tuple(here), here

    def _list_announced(self, network: Network) -> tuple[NodeNames, tuple[wire.Announced, ...], tuple[str | None, ...]]:
        """Lists the names of nodes, the announced datasets, and the rung on which each mirrored one was met."""
        signed, public = self._find_signed(network)
        counts = {each: count for each, count in self._facts.holders.of(signed).items() if count or each in public}
        naming = self._facts.names()
        names = {entry.id: entry.name for entry in self._home.entries()}
        announced, rungs, unheld = [], [], self._facts.unheld.heads()
        with self._home.database.read() as connection:
            ledger = Ledger(connection)
            # In one order, or each read of the network would seem a change of it.
            for dataset, peers in sorted(counts.items(), key=lambda each: bytes(each[0])):
                kept = ledger.newest_head(dataset)
                newest = unheld.get(dataset) if kept is None else kept[0]
                card = self._facts.cards.card(dataset)
                if newest is None or (card is not None and card.is_withdrawal and dataset not in names):
                    continue
                claims = None if card is None else card.claims
                rungs.append(rung_of(connection, dataset) if dataset in names else None)
                announced.append(
                    wire.Announced(
                        id=str(dataset),
                        name=names.get(dataset),
                        blocks=newest.size,
                        head=str(newest.head),
                        signed_at=newest.issued_at,
                        peers=peers,
                        held=dataset in names,
                        called=None if claims is None else claims.name,
                        publisher=None if claims is None else claims.publisher,
                        node=publisher_node(card, naming),
                        contact=dataset_contact(rungs[-1]),
                    )
                )
        return naming, tuple(announced), tuple(rungs)


def _view(invitation: Invitation, text: str) -> wire.InvitationView:
    return wire.InvitationView(
        text=text,
        network=invitation.network,
        bootstrap=invitation.bootstrap,
        by=str(invitation.by),
        expires_at=invitation.expires_at,
        policy_key=None if invitation.policy_key is None else str(invitation.policy_key),
        rules=rule_lines(invitation.rules),
        uses=invitation.uses,
    )

"""Issues invitations with tokens, counts the nodes that redeem them, and redeems those of other nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from chain import instant
from chain.errors import Refused, Remote
from chain.instant import SECOND, Instant
from odfd.control import wire
from odfd.network.invitation import Invitation
from odfd.network.membership import Membership
from odfd.network.node_names import NodeNames
from odfd.runtime.clock import Clock
from odfd.services.peers.node_views import peer_name
from odfd.store.directory import StateDirectory
from odfd.store.invitation_tokens import InvitationTokens, IssuedInvitation, digest_of_token
from p2p.identity import peer_of_did
from p2p.ports import PeerId
from p2p.wire.invite import TOKEN_BYTES, Redemption

_SAID: Final = {
    Redemption.UNKNOWN: (
        "the node that invites knows no such invitation: it was made by another state of it, or it left the network",
        "invitation-unknown",
    ),
    Redemption.EXPIRED: ("it has expired", "invitation-expired"),
    Redemption.USED: ("it was used by as many nodes as it is for", "invitation-used"),
    Redemption.REVOKED: ("it was revoked", "invitation-revoked"),
}


class InvitationUses:
    """Keeps the invitations with tokens that one node made, and redeems one of another node."""

    def __init__(
        self, home: StateDirectory, membership: Membership, clock: Clock, random: Callable[[int], bytes]
    ) -> None:
        """``random`` returns the given number of random bytes."""
        self._home, self._membership, self._clock, self._random = home, membership, clock, random

    def issue(self, network: str, uses: int, seconds: int) -> str:
        """Returns a new token in hexadecimal, of which only a digest is kept. Raises Invalid, Refused."""
        token, now = self._random(TOKEN_BYTES), self._clock.now()
        issued = IssuedInvitation(
            digest=digest_of_token(token),
            network=network,
            uses=uses,
            made=now,
            expires=Instant(now + seconds * SECOND),
        )
        with self._home.database.write() as connection:
            InvitationTokens(connection).issue(issued)
        return token.hex()

    def redeem(self, peer: PeerId, token: bytes) -> Redemption:
        """Admits a node that shows a token, after the use is stored. Call from a worker thread. Raises Environment."""
        with self._home.database.read() as connection:
            if not InvitationTokens(connection).knows(token):
                return Redemption.UNKNOWN
        joined = [network.name for network in self._membership.networks]
        with self._home.database.write() as connection:
            return InvitationTokens(connection).redeem(token, peer, joined, self._clock.now())

    def list(self, names: NodeNames) -> Sequence[wire.InvitationState]:
        """Lists all invitations with tokens of this node, the newest first."""
        with self._home.database.read() as connection:
            found = InvitationTokens(connection).all()
        return [self._view(each, names) for each in found]

    def revoke(self, id_: str, names: NodeNames) -> wire.InvitationState:
        """Revokes an invitation. Raises NotFound, Invalid."""
        with self._home.database.write() as connection:
            revoked = InvitationTokens(connection).revoke(id_)
        return self._view(revoked, names)

    async def show_token(self, said: Invitation) -> None:
        """Redeems the token of an invitation at the node that made it. Raises Refused with the outcome, Remote."""
        inviter = peer_of_did(said.by)
        if said.token is None or inviter == self._membership.peer_id:
            return
        try:
            await self._membership.connect(*said.inviters())
        except Remote as fault:
            raise Remote(
                f"the node that invites to {said.network} is not reached, and it alone can redeem the invitation",
                rule="invitation-unreachable",
                hint="try again when it is online: nothing of the invitation is used up by that",
            ) from fault
        try:
            outcome = await self._membership.redeem_at(inviter, bytes.fromhex(said.token))
        except Remote as fault:
            raise Remote(
                f"the node that invites to {said.network} is reached, but did not answer: {fault.message}",
                rule="invitation-unanswered",
                hint="try again when it answers: an invitation counts a node once, however often it shows the token",
            ) from fault
        if outcome is Redemption.BUSY:
            raise Remote(
                "the node that invites cannot answer now", rule="invitation-busy", hint="try again in a minute"
            )
        if outcome is not Redemption.ADMITTED:
            why, rule = _SAID[outcome]
            raise Refused(
                f"the invitation to {said.network} is not accepted: {why}",
                rule=rule,
                hint="ask for another one: odfctl network invite makes it",
            )

    def _view(self, issued: IssuedInvitation, names: NodeNames) -> wire.InvitationState:
        return wire.InvitationState(
            id=issued.id,
            network=issued.network,
            state=issued.state(self._clock.now()),
            uses=issued.uses,
            nodes=tuple(peer_name(peer_of_did(node), names) for node in issued.nodes),
            made_at=instant.render(issued.made),
            expires_at=instant.render(issued.expires),
        )

"""Defines the errors of the network: another node did something wrong, or could not be reached. Each names the peer.

Only ``BadAddress`` and ``AddressInUse`` are raised for a user's own mistake.
"""

from __future__ import annotations

from chain.errors import Environment, Invalid, Refused, Remote


class PeerFault(Remote):
    """A fault attributed to a peer. ``peer`` is its id in base58, or empty before it is known."""

    advice = ""
    """The hint of a fault of this class that has none of its own."""
    common_rule = "peer-failed"
    """The rule of a fault of this class that names none of its own."""

    def __init__(self, peer: str, message: str, *, rule: str = "", hint: str = "", place: str = "") -> None:
        text = f"peer {peer}: {message}" if peer else message
        super().__init__(text, rule=rule or self.common_rule, hint=hint or self.advice, place=place)
        self.peer = peer


class PeerUnreachable(PeerFault):
    """No connection was established: nothing listens, no route, or the handshake failed."""

    common_rule = "peer-unreachable"


class TooSlow(PeerFault):
    """The peer did not answer within the time that we allow."""

    common_rule = "peer-slow"
    advice = "it may be stopped, or its line slow: try again; odfctl peer list shows the connected peers"


class WrongIdentity(PeerFault):
    """The peer at that address has another key than the one that we dialled."""

    common_rule = "peer-identity"


class ProtocolUnsupported(PeerFault):
    """The peer does not speak the protocol that we asked for."""

    common_rule = "protocol"


class Misbehaviour(PeerFault):
    """The peer broke a rule of a protocol; ``rule`` names the rule."""

    common_rule = "peer-misbehaviour"


class StreamBroken(PeerFault):
    """The stream, or the connection under it, ended too early."""

    common_rule = "stream-broken"
    advice = "try again; odfctl peer list shows the connected peers"


class TooManyStreams(PeerFault):
    """Every stream that a connection may have is in use, and none came free in time."""

    common_rule = "stream-limit"
    advice = "try again in a moment, when requests under way have ended"


class NotTaken(PeerFault):
    """A gossip message could not be passed on to other peers."""

    common_rule = "gossip-not-passed"


class NotJoined(Refused):
    """A gossip topic was used that this node has not joined."""


class BadAddress(Invalid):
    """Reports an address that we cannot dial or listen on."""


class AddressInUse(Environment):
    """The port to listen on is in use, or this process may not listen on it."""


class UnsupportedLibrary(Environment):
    """The installed version of py-libp2p is not the one that ``p2p.host`` was hardened for."""


def only(group: BaseExceptionGroup) -> BaseException:
    """Returns the only exception in nested groups, or the outermost group if there are several."""
    if len(group.exceptions) != 1:
        return group
    inner = group.exceptions[0]
    return only(inner) if isinstance(inner, BaseExceptionGroup) else inner

"""Defines the faults of the network: what another node did, or what prevented reaching it. Each names the peer.

Nothing here is raised for a user's own mistake, but for ``BadAddress`` and ``AddressInUse``.
"""

from __future__ import annotations

from chain.errors import Environment, Invalid, Refused, Remote


class PeerFault(Remote):
    """A fault attributed to a peer. ``peer`` is its id in base58, or empty before it is known."""

    def __init__(self, peer: str, message: str, *, rule: str = "", hint: str = "", place: str = "") -> None:
        super().__init__(f"peer {peer}: {message}" if peer else message, rule=rule, hint=hint, place=place)
        self.peer = peer


class Unreachable(PeerFault):
    """No connection was established: nothing listens, no route, or the handshake failed."""


class TooSlow(PeerFault):
    """The peer did not answer within the time we give it."""


class WrongIdentity(PeerFault):
    """The peer at that address holds another key than the one we asked for."""


class ProtocolUnsupported(PeerFault):
    """The peer does not speak the protocol that we asked for."""


class Violation(PeerFault):
    """The peer broke the rules of a protocol; ``rule`` names the one."""


class StreamBroken(PeerFault):
    """The stream or the connection under it ended before its time."""


class TooManyStreams(PeerFault):
    """Every stream that a connection may have is in use, and none came free in time."""


class NotTaken(PeerFault):
    """A gossip message could not be handed on."""


class NotJoined(Refused):
    """A topic that this node has not joined."""


class BadAddress(Invalid):
    """Reports an address that we cannot dial or listen on."""


class AddressInUse(Environment):
    """The port to listen on is taken, or we may not have it."""


class UnsupportedLibrary(Environment):
    """The installed py-libp2p is not the version that was hardened."""


def only(group: BaseExceptionGroup) -> BaseException:
    """The one exception in a nest of groups; the group when there are several."""
    if len(group.exceptions) != 1:
        return group
    inner = group.exceptions[0]
    return only(inner) if isinstance(inner, BaseExceptionGroup) else inner

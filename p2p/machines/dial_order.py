"""Decides in which order the addresses of a peer are dialled, and when each (RFC 8305, "happy eyeballs"). Sans-IO.

IPv6 comes first, and the families take turns, so that a family that does not work costs one head start and not one for
each of its addresses. Addresses of local networks of IPv6 (``fc00::/7``) come after the others, as RFC 6724 ranks them,
and circuits through a relay last.
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from typing import Final, TypeVar

from p2p.address import PeerAddress
from p2p.ip import Ip

MAX_TRIED: Final = 4
"""Addresses of one peer that are dialled if others named them, and addresses of one name."""
HEAD_START: Final = 0.25
"""Seconds after which the next address is dialled beside one that has not answered yet: the delay of RFC 8305."""
FIRST, SECOND, LAST = range(3)
"""Ranks: IPv6, IPv4, and local networks of IPv6."""
_LOCAL: Final = ipaddress.IPv6Network("fc00::/7")
T = TypeVar("T")


def in_order(addresses: Iterable[PeerAddress], most: int = MAX_TRIED) -> list[PeerAddress]:
    """Returns the addresses of one peer to dial, in order, at most ``most``.

    A circuit, if there is one, has a place among them, however many others there are. A name that may have addresses of
    both families stands with those of IPv6.
    """
    told = list(dict.fromkeys(addresses))
    circuits = [each for each in told if each.relay is not None]
    direct = _order([each for each in told if each.relay is None], _rank_of_address)
    return [*direct[: most - bool(circuits)], *circuits][:most]


def ips_in_order(ips: Iterable[Ip]) -> list[Ip]:
    """Returns the addresses of one name to dial, in order, at most ``MAX_TRIED``."""
    return _order(list(dict.fromkeys(ips)), _rank)[:MAX_TRIED]


def _order(told: Sequence[T], rank: Callable[[T], int]) -> list[T]:
    groups = [[each for each in told if rank(each) == at] for at in (FIRST, SECOND, LAST)]
    pairs = zip_longest(groups[FIRST], groups[SECOND])
    return [*(each for pair in pairs for each in pair if each is not None), *groups[LAST]]


def _rank_of_address(address: PeerAddress) -> int:
    if address.ip is None:
        return SECOND if address.network == "dns4" else FIRST
    return _rank(address.ip)


def _rank(ip: Ip) -> int:
    if ip.version == 4:
        return SECOND
    return LAST if ip in _LOCAL else FIRST


class Race:
    """Says when each of several attempts begins: the next one when the last has failed, or after its head start."""

    def __init__(self, attempts: int) -> None:
        self._attempts = attempts
        self._begun = 0
        self._next = -math.inf
        """The time at which the next attempt begins, unless the last one fails before."""

    def begins(self, now: float) -> int | None:
        """Returns the number of the attempt that begins now; ``None``: none does. Call it until it returns ``None``."""
        if self._begun == self._attempts or now < self._next:
            return None
        self._begun += 1
        self._next = now + HEAD_START
        return self._begun - 1

    def note_failure(self, attempt: int) -> None:
        """Records that an attempt failed. If it is the last that began, the next one begins at once."""
        if attempt == self._begun - 1:
            self._next = -math.inf

    @property
    def wakes(self) -> float:
        """The time at which the next attempt begins if nothing happens before; infinite: all have begun."""
        return self._next if self._begun < self._attempts else math.inf

"""Opens outgoing connections: resolves a name once, checks which of its addresses are allowed, and dials one of these.

Every connection to a peer, a site, a source or a witness is opened here. No name is resolved again between the check
and the dial; otherwise its DNS server could give a good address for the check and an address of this machine for the
dial. Whoever named the host decides which addresses are allowed. The owner's own may be anywhere, but a name of the
Internet, whose server may answer otherwise tomorrow, is not dialled on this machine or its link: whoever means that
writes the address, or a local name. Hosts that others named are dialled only in the Internet and in networks that a
setting names.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import trio

from chain.errors import Refused
from p2p.ip import Allows, Ip, anywhere, is_beyond, is_local_name, parse_ip
from p2p.machines.dial_order import MAX_TRIED, Race, ips_in_order

T = TypeVar("T")


class NotAllowed(Refused):
    """None of a host's addresses may be dialled on the word of who named it, or of the server that resolves it."""


async def resolve(host: str, port: int, allows: Allows, family: int = socket.AF_UNSPEC) -> list[Ip]:
    """Resolves a host to the addresses to dial, in order, one to ``MAX_TRIED``.

    Raises OSError if there is no such host, NotAllowed if ``allows`` accepts none of its addresses.
    """
    if "%" in host:  # the zone would be lost with the judgement, and the kernel refuses the address without it
        raise socket.gaierror(socket.EAI_NONAME, "an address with a zone is not dialled")
    try:
        found = await trio.socket.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM)
    except ValueError as error:  # a NUL, or what is no name by IDNA
        raise socket.gaierror(socket.EAI_NONAME, str(error)) from error
    addresses = list(dict.fromkeys(parse_ip(str(each[4][0])) for each in found))
    is_rebound = allows is anywhere and not is_local_name(host)
    allowed = [address for address in addresses if (is_beyond if is_rebound else allows)(address)]
    if not allowed and is_rebound:
        raise NotAllowed(
            f"{host} is at {', '.join(map(str, addresses[:MAX_TRIED]))}, which is this machine or its link",
            rule="address-rebound",
            hint="its name server may lead this node anywhere; if it is right, name the address itself",
        )
    if not allowed:
        places = ", ".join(map(str, addresses[:MAX_TRIED]))
        raise NotAllowed(
            f"{host} is at {places}, where others do not send this node"
            if places != host
            else f"others do not send this node to {host}",
            rule="address-inside",
            hint="it is no address of the Internet; name the address itself, if it is right",
        )
    return ips_in_order(allowed)


async def first_of(
    attempts: Sequence[Callable[[], Awaitable[T]]],
    expected: type[Exception] | tuple[type[Exception], ...],
    discard: Callable[[T], Awaitable[object]] | None = None,
) -> T:
    """Returns the result of the first attempt that succeeds, and cancels the others; late results go to ``discard``.

    ``Race`` says when each attempt begins. If none succeeds, raises the error of the first attempt. An exception other
    than ``expected`` ends all attempts and is raised in a group. A caller that is cancelled gets no result: results
    that were there by then are discarded too.
    """
    faults: dict[int, Exception] = {}
    results: list[T] = []

    async def discard_all(unused: list[T]) -> None:
        with trio.CancelScope(shield=True):
            for result in unused:
                if discard is not None:
                    await discard(result)

    race, over = Race(len(attempts)), trio.Event()

    async def attempt(number: int) -> None:
        try:
            result = await attempts[number]()
        except expected as fault:
            faults[number] = fault
            race.note_failure(number)
        else:
            results.append(result)
            nursery.cancel_scope.cancel()
        over.set()

    try:
        async with trio.open_nursery() as nursery:
            while len(faults) + len(results) < len(attempts):
                over = trio.Event()
                if (number := race.begins(trio.current_time())) is not None:
                    nursery.start_soon(attempt, number)
                    continue
                with trio.move_on_at(race.wakes):
                    await over.wait()
    except BaseException:
        await discard_all(results)
        raise
    if not results:
        raise faults[0]
    await discard_all(results[1:])
    return results[0]

"""A machine that moves is noticed, once, and a lease that blinks is not a move."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from p2p.driver.node_reach import NetworkChanges
from p2p.ip import Ip, parse_ip
from p2p.machines.reachability import LOOK, AddressWatch, Moved

HOME, CAFE, LOOPBACK = parse_ip("192.168.1.2"), parse_ip("10.7.0.9"), parse_ip("127.0.0.1")
sets = st.frozensets(st.integers(1, 5).map(lambda n: parse_ip(f"10.0.0.{n}")))


def test_what_blinks_is_no_move_and_what_moves_is_told_once() -> None:
    watch = AddressWatch([HOME, LOOPBACK])
    assert watch.look([LOOPBACK]) is None
    assert watch.look([HOME]) is None, "it was gone for a moment"
    assert watch.look([]) is None
    assert watch.look([CAFE]) == Moved(frozenset([CAFE]), frozenset([HOME]))
    assert watch.look([CAFE]) is None


@pytest.mark.slow
@given(sets, st.lists(sets, max_size=12))
def test_what_was_told_adds_up_to_what_is_there(first: frozenset[Ip], looks: list[frozenset[Ip]]) -> None:
    watch, known = AddressWatch(first), first
    for now in [*looks, *([looks[-1]] * 2 if looks else [])]:
        if (move := watch.look(now)) is not None:
            known = (known | move.came) - move.gone
    assert known == (looks[-1] if looks else first)


@pytest.mark.slow
async def test_dead_connections_are_dropped_within_five_seconds(autojump_clock: Any) -> None:
    """In virtual time, whenever between two looks the machine moves."""

    class Machine:
        at: frozenset[Ip] = frozenset([HOME])
        dropped: float | None = None

        def interfaces(self) -> frozenset[Ip]:
            return self.at

        async def interfaces_changed(self, known: frozenset[Ip]) -> None:
            while self.at == known:  # noqa: ASYNC110 - a stand-in of the kernel, in virtual time
                await trio.sleep(LOOK / 10)

        async def drop_from(self, gone: frozenset[Ip]) -> int:
            await trio.lowlevel.checkpoint()
            if HOME in gone:
                self.dropped = trio.current_time()
            return len(gone)

    for part in range(10):
        machine: Any = Machine()
        told: list[float] = []
        moves = NetworkChanges(machine, [lambda told=told: told.append(trio.current_time())])  # type: ignore[misc]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(moves.run)
            await trio.sleep(3 + part * LOOK / 10)
            machine.at, moved = frozenset([CAFE]), trio.current_time()
            await trio.sleep(5)
            assert machine.dropped is not None
            assert machine.dropped - moved <= 2 * LOOK + 1e-6
            assert told
            nursery.cancel_scope.cancel()


async def test_a_machine_that_stays_is_looked_at_once(autojump_clock: Any) -> None:
    class Machine:
        looks = 0

        def interfaces(self) -> frozenset[Ip]:
            self.looks += 1
            return frozenset([HOME])

        async def interfaces_changed(self, known: frozenset[Ip]) -> None:
            assert known == {HOME}
            await trio.sleep_forever()

    machine: Any = Machine()
    with trio.move_on_after(3600):
        await NetworkChanges(machine, ()).run()
    assert machine.looks == 1

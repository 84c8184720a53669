"""Rounds of anti-entropy go over what is wanted here, once what is wanted by nobody has cost enough."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from chain.ids import DatasetId
from chain.multihash import Multihash
from p2p.budget.buckets import Rate
from p2p.driver import statements
from p2p.driver.framing import FramedStream
from p2p.driver.statements import WIDE, RoundScope
from p2p.ports import Judgement, PeerId, StatementRef, Topic
from p2p.wire import trust
from p2p.wire.limits import MAX_DATASETS, MAX_TRUST_REPLY

WANTED, OTHER = DatasetId.from_public_key(b"A" * 32), DatasetId.from_public_key(b"B" * 32)


def spend(node: Any, but: int = 0) -> None:
    """As after hearing all that a large network says, but so many bytes."""
    node.driver._statements._scope.cost(int(WIDE.burst) - but, trio.current_time())


def said(node: Any, *envelopes: bytes) -> None:
    for envelope in envelopes:
        assert node.board.judge(Topic.HEADS, envelope, node.peer) is Judgement.ACCEPT


def held(node: Any) -> set[bytes]:
    return {envelope for _, envelope, _ in node.board.held.values()}


@pytest.mark.slow
async def test_rounds_bring_what_is_wanted_and_no_more(
    autojump_clock: Any, town: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statements, "WIDE", Rate(per_second=WIDE.burst / 600, burst=WIDE.burst))
    a = await town.node("a")
    b = await town.node("b", connect=[a])
    await trio.testing.wait_all_tasks_blocked()
    b.board.wanted.add(WANTED)
    spend(b)
    said(a, b"okA lost by gossip", b"okB lost too")
    await trio.sleep(80)
    assert held(b) == {b"okA lost by gossip"}
    await trio.sleep(300)
    assert held(b) == held(a), "there is room for what others want, in time"


async def test_a_newcomer_is_met_with_what_it_wants(autojump_clock: Any, town: Any) -> None:
    a, b = await town.node("a"), await town.node("b")
    said(a, b"okA one", b"okB two")
    b.board.wanted.add(WANTED)
    spend(b)
    await b.driver.connect("/memory/a")
    await trio.sleep(5)
    assert held(b) == {b"okA one"}


async def test_who_asks_for_all_hears_all(autojump_clock: Any, town: Any) -> None:
    """A person, or a journal that is put together again, waits for it."""
    a = await town.node("a")
    b = await town.node("b", connect=[a])
    await trio.testing.wait_all_tasks_blocked()
    spend(b)
    said(a, b"okA one", b"okB two")
    assert await b.driver.pull_statements(a.peer) == 2


async def test_a_node_that_wants_nothing_asks_nothing(autojump_clock: Any, town: Any) -> None:
    a = await town.node("a")
    b = await town.node("b", connect=[a])
    await trio.testing.wait_all_tasks_blocked()
    said(a, b"okB of no interest")
    spend(b)
    assert await b.driver._statements.run_round(a.peer) == 0
    assert held(b) == set()


class Throng:
    """A peer in a large network: it keeps 4,096 statements nobody here wants, each time others. Counts its bytes."""

    listed = 4096

    def __init__(self) -> None:
        self.given = self.rounds = self.directed = 0

    def tell(self, ask: trust.TrustAsk) -> trust.TrustTell:
        if isinstance(ask, trust.SumAsk):
            self.rounds += 1
            return trust.Sums({f"{n:02x}": f"{self.rounds:064d}" for n in range(256)})
        if isinstance(ask, trust.GetAsk):
            return trust.Statements((), done=len(ask.sids))
        assert isinstance(ask, trust.ListAsk)
        if ask.datasets:
            self.directed += 1
            return trust.page([], more=False)
        first = self.rounds << 12
        refs = [
            StatementRef(Multihash.from_digest(0x16, (first + n).to_bytes(32, "big")), OTHER)
            for n in range(self.listed)
        ]
        return trust.page(refs, more=False)

    async def serve(self, stream: Any, peer: PeerId) -> None:
        framed = FramedStream(stream, peer, MAX_TRUST_REPLY)
        while body := await framed.read():
            answer = trust.encode(self.tell(trust.decode_ask(body)))
            self.given += len(answer)
            await framed.write(answer)


@pytest.mark.slow
async def test_what_nobody_wants_costs_so_much_however_many_tell_it(autojump_clock: Any, town: Any) -> None:
    node = await town.node("node")
    node.board.wanted.add(WANTED)
    throng = [Throng() for _ in range(3)]
    for number, peer in enumerate(throng):
        town.bare(f"t{number}", trust=peer.serve)
        await node.driver.connect(f"/memory/t{number}")
    await trio.sleep(1800)
    assert sum(peer.given for peer in throng) < WIDE.burst + 1800 * WIDE.per_second + 4 * MAX_TRUST_REPLY
    assert all(peer.directed > 10 for peer in throng), "each is asked for what is wanted meanwhile"


async def test_sums_cost_nothing(autojump_clock: Any, town: Any) -> None:
    """Where all keep the same, rounds are wide for ever, however many datasets there are."""
    node = await town.node("node")
    await trio.testing.wait_all_tasks_blocked()
    spend(node, but=1000)
    throng = Throng()
    throng.listed = 0
    town.bare("t", trust=throng.serve)
    await node.driver.connect("/memory/t")
    await trio.sleep(5)
    assert throng.given > len(trust.encode(throng.tell(trust.SumAsk()))) - 1
    assert node.driver._statements._scope.is_wide(trio.current_time())


def test_what_is_spent_rests_until_half_of_it_is_back() -> None:
    scope = RoundScope()
    assert scope.is_wide(0)
    scope.cost(int(WIDE.burst), 0)
    half = WIDE.burst / 2 / WIDE.per_second
    assert [scope.is_wide(at) for at in (0, 60, half - 1, half, half + 1)] == [False, False, False, True, True]


@given(st.sets(st.integers(0, 1 << 30), max_size=4 * MAX_DATASETS), st.integers(0, 6))
def test_prop_all_that_is_wanted_has_its_turn(numbers: set[int], before: int) -> None:
    wanted = [DatasetId.from_public_key(number.to_bytes(32, "big")) for number in numbers]
    scope = RoundScope()
    for _ in range(before):
        scope.turn([*wanted[::2], OTHER])
    turns = [scope.turn(wanted) for _ in range(-(-len(wanted) // MAX_DATASETS))]
    assert {each for turn in turns for each in turn} == set(wanted)
    assert all(len(turn) <= MAX_DATASETS for turn in turns)
    assert len(turns) < 1 or len(turns[0]) == min(len(wanted), MAX_DATASETS)

"""Turns of those who ask, and connections with holders."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.errors import Invalid
from chain.ids import DatasetId
from chain.multihash import Multihash
from p2p.driver.fetch_jobs import CHAIN_SHAPE, OBJECT_SHAPE
from p2p.driver.forwarding import LASTS, MAX_ASKED, MAX_PEERS, ImpliedSubscriptions
from p2p.driver.transfers import LEAST_PART, fit_to_rate
from p2p.machines import reconcile
from p2p.machines.declined import Seen
from p2p.machines.holder_connections import ENOUGH, HolderConnections, Meet
from p2p.machines.lanes import Lanes
from p2p.machines.reconcile import Done, Fetch, Reconcile, Show
from p2p.machines.request_queue import (
    MAX_WAITING,
    QUANTUM,
    ROOMY,
    AnswerWritten,
    Asked,
    Gone,
    ReadDone,
    ReadRequest,
    RefuseRequest,
    RequestQueue,
    RequestStream,
)
from p2p.pace import BURST, WINDOW, LineTraffic, Pace, PeerTraffic, RecentBytes, Traffic
from p2p.ports import PeerId, StatementRef, Topic
from p2p.wire import trust
from p2p.wire.chains import BlockRange
from p2p.wire.limits import MAX_LISTED, MAX_TRUST_REPLY
from p2p.wire.refusal import RefusalReason

# Turns: fair between peers and between what one peer asks for; bounded; nothing lost.

ANNA, BOB = RequestStream(PeerId("anna"), 1), RequestStream(PeerId("bob"), 2)


def asked(asker: RequestStream, number: int, dataset: int = 0) -> Asked:
    ident = DatasetId.from_public_key(bytes([dataset]) * 32)
    return Asked(asker, BlockRange(request=number, dataset=ident, start=0))


def served(
    machine: RequestQueue, first: list[ReadRequest | RefuseRequest], size: int = QUANTUM
) -> list[tuple[str, int, int]]:
    """Perform all turns in order; who got which request of which dataset."""
    order, queue = [], list(first)
    while queue:
        effect = queue.pop(0)
        assert isinstance(effect, ReadRequest)
        request = effect.request
        assert isinstance(request, BlockRange)
        order.append((effect.asker.peer, request.request, request.dataset.public_key[0]))
        queue += machine.handle(ReadDone(effect.asker, size))
        queue += machine.handle(AnswerWritten(effect.asker))
    return order


def test_one_answer_is_read_while_one_is_written_and_no_more() -> None:
    machine = RequestQueue()
    assert [type(effect) for effect in machine.handle(asked(ANNA, 1))] == [ReadRequest]
    assert machine.handle(asked(ANNA, 2)) == []
    assert machine.handle(asked(ANNA, 3)) == []
    assert [effect.request.request for effect in machine.handle(ReadDone(ANNA, 10))] == [2]
    assert machine.handle(ReadDone(ANNA, 10)) == [], "two of them are in memory"
    assert [effect.request.request for effect in machine.handle(AnswerWritten(ANNA))] == [3]
    assert machine.handle(AnswerWritten(ANNA)) == []


def test_no_answer_is_read_ahead_while_many_are_not_taken() -> None:
    """Attack T-PEER-04: answers that many request and do not read.

    Defence: answers that are not read have a limit of 128 MiB for all peers; above 32 MiB no answer is read ahead.
    """
    machine = RequestQueue(readers=100)
    holders = [RequestStream(PeerId(f"p{number}"), 1) for number in range(40)]
    for each in holders:
        assert len(machine.handle(asked(each, 1))) == 1
        machine.handle(ReadDone(each, ROOMY // 32))
    assert [type(effect) for effect in machine.handle(asked(BOB, 1))] == [ReadRequest], (
        "whoever holds nothing is served"
    )
    assert machine.handle(ReadDone(BOB, 10)) == []
    assert machine.handle(asked(BOB, 2)) == [], "it takes the first before"
    for each in holders:
        machine.handle(Gone(each))
    assert [type(effect) for effect in machine.handle(asked(BOB, 3))] == [ReadRequest]


def test_a_flood_does_not_delay_others() -> None:
    machine = RequestQueue(readers=1)
    effects = machine.handle(asked(ANNA, 0))
    for number in range(1, 30):
        assert machine.handle(asked(ANNA, number)) == []
    machine.handle(asked(BOB, 99))
    assert [who for who, *_ in served(machine, effects)].index("bob") <= 2


def test_a_large_dataset_does_not_hold_up_a_small_one() -> None:
    machine = RequestQueue()
    effects = machine.handle(asked(ANNA, 0, dataset=1))
    for number in range(1, 20):
        machine.handle(asked(ANNA, number, dataset=1))
    machine.handle(asked(ANNA, 77, dataset=2))
    order = [number for _, number, _ in served(machine, effects)]
    assert order.index(77) <= 2


def test_bytes_count_not_requests() -> None:
    """A subject with small answers has many of them in its turn."""
    machine = RequestQueue()
    effects = machine.handle(asked(ANNA, 0, dataset=1))
    for number in range(1, 10):
        machine.handle(asked(ANNA, number, dataset=1))
        machine.handle(asked(ANNA, 100 + number, dataset=2))
    order = [dataset for *_, dataset in served(machine, effects, size=QUANTUM // 4)]
    assert order[1:9] == [1, 1, 1, 1, 2, 2, 2, 2], "the first came when nothing else was asked for"


def test_one_over_what_may_wait() -> None:
    machine = RequestQueue()
    machine.handle(asked(ANNA, 0))
    for number in range(1, MAX_WAITING + 1):
        assert machine.handle(asked(ANNA, number)) == []
    (refused,) = machine.handle(asked(ANNA, 1000))
    assert isinstance(refused, RefuseRequest)
    assert (refused.refusal.request, refused.refusal.reason) == (1000, RefusalReason.BUSY)
    assert [type(effect) for effect in machine.handle(asked(BOB, 1))] == [ReadRequest]


def test_who_is_gone_is_forgotten_and_blocks_nobody() -> None:
    machine = RequestQueue(readers=1)
    machine.handle(asked(ANNA, 0))
    machine.handle(asked(ANNA, 1))
    machine.handle(asked(BOB, 2))
    assert machine.handle(Gone(ANNA)) == []
    assert [effect.asker for effect in machine.handle(ReadDone(ANNA, 5))] == [BOB]
    assert machine.handle(AnswerWritten(ANNA)) == []


@given(st.lists(st.tuples(st.sampled_from([ANNA, BOB]), st.integers(0, 3), st.integers(1, 2 * QUANTUM)), max_size=60))
def test_prop_every_request_has_one_turn(asks: list[tuple[RequestStream, int, int]]) -> None:
    machine = RequestQueue(readers=1)
    queue = []
    for number, (asker, dataset, _) in enumerate(asks):
        queue += machine.handle(asked(asker, number, dataset))
    turns: Counter[int] = Counter()
    while queue:
        effect = queue.pop(0)
        assert isinstance(effect, ReadRequest)
        turns[effect.request.request] += 1
        queue += machine.handle(ReadDone(effect.asker, asks[effect.request.request][2]))
        queue += machine.handle(AnswerWritten(effect.asker))
    assert turns == Counter(range(len(asks)))


def test_keys_buy_no_turns() -> None:
    """Attack T-PEER-04: many keys that request blocks and objects, to get all turns.

    Defence: turns are shared by subnets, then by peers.

    Fifty keys of one block of addresses ask without end, and one elsewhere gets half of what is read.
    """
    machine, crowd = (
        RequestQueue(readers=1),
        [RequestStream(PeerId(f"free{number}"), 1, "198.51") for number in range(50)],
    )
    honest = RequestStream(PeerId("honest"), 1, "203.0")
    effects, given = [], Counter[str]()
    for number, each in enumerate([*crowd, honest] * 8):
        effects += machine.handle(asked(each, number))
    while effects and given.total() < 100:
        asker = effects.pop(0).asker
        given[asker.block] += 1
        effects += machine.handle(ReadDone(asker, QUANTUM))
        effects += machine.handle(AnswerWritten(asker))
        effects += machine.handle(asked(asker, 0))
    assert given["203.0"] >= 40


def test_who_was_away_has_saved_nothing_up() -> None:
    machine, one, late = (
        RequestQueue(readers=1),
        RequestStream(PeerId("one"), 1, "a"),
        RequestStream(PeerId("late"), 1, "b"),
    )
    effects = machine.handle(asked(one, 0))
    for number in range(1, 60):
        machine.handle(asked(one, number))
    for _ in range(30):
        effects += machine.handle(ReadDone(effects.pop(0).asker, QUANTUM))
        machine.handle(AnswerWritten(one))
    for number in range(20):
        machine.handle(asked(late, number))
    order = []
    for _ in range(10):
        asker = effects.pop(0).asker
        order.append(asker.peer)
        effects += machine.handle(ReadDone(asker, QUANTUM))
        machine.handle(AnswerWritten(asker))
    assert 4 <= order.count("one") <= 6


# Lanes: fair between blocks of addresses, in one between senders, in order within one; bounded.

BLOCKS = dict(zip("abcde", "xxxyz", strict=True))
SENT = st.lists(st.tuples(st.sampled_from("abcde"), st.integers(1, 50)), max_size=60)


@given(SENT, st.integers(1, 30), st.integers(50, 400))
def test_each_sender_is_served_in_order_and_in_turn(sent: list[tuple[str, int]], most: int, most_bytes: int) -> None:
    lanes = Lanes[str, tuple[str, int]](most, most_bytes)
    sizes: dict[tuple[str, int], int] = {}
    kept: defaultdict[str, list[int]] = defaultdict(list)
    for number, (sender, size) in enumerate(sent):
        item = (sender, number)
        sizes[item] = size
        kept[sender].append(number)
        before = {each: sum(sizes[each, n] for n in kept[each]) for each in kept}
        for dropped in lanes.put("block", sender, item, size):
            assert before[dropped[0]] == max(before.values()), "the heaviest makes room"
            assert kept[dropped[0]].pop() == dropped[1], "and its newest goes"
            before[dropped[0]] -= sizes[dropped]
        assert len(lanes) <= most
        assert sum(before.values()) <= most_bytes
    taken: defaultdict[str, list[int]] = defaultdict(list)
    turns = Counter[str]()
    while (item := lanes.take()) is not None:
        taken[item[0]].append(item[1])
        turns[item[0]] += 1
        waiting = {sender for sender in kept if len(kept[sender]) > turns[sender]}
        assert all(turns[item[0]] <= turns[sender] + 1 for sender in waiting), "nobody goes twice before another once"
    assert {sender: numbers for sender, numbers in kept.items() if numbers} == taken
    assert not len(lanes)


@given(SENT, st.randoms(use_true_random=False))
def test_who_leaves_leaves_nothing(sent: list[tuple[str, int]], rng: object) -> None:
    lanes = Lanes[str, tuple[str, int]](1000, 1 << 20)
    items = [(sender, number) for number, (sender, _) in enumerate(sent)]
    for item, (sender, size) in zip(items, sent, strict=True):
        assert lanes.put(BLOCKS[sender], sender, item, size) == []
    rng.shuffle(items)  # type: ignore[attr-defined]
    for item in items:
        lanes.remove(BLOCKS[item[0]], item[0], item)
        lanes.remove(BLOCKS[item[0]], "nobody", item)
        lanes.remove("nowhere", item[0], item)
    assert lanes.take() is None
    assert (len(lanes), lanes._bytes) == (0, 0)


@given(st.integers(1, 200), st.integers(1, 3), st.integers(6, 60), st.booleans())
def test_keys_of_one_block_buy_neither_turns_nor_room(keys: int, each: int, most: int, crowd_first: bool) -> None:
    """Attack T-HEAD-08: many keys in one subnet that fill the queue of statements.

    Defence: they share the turns and the memory of that subnet.

    Of one block any number of keys, of another one sender with three items.
    """
    lanes = Lanes[str, str](most, 1 << 20)
    honest = [("honest", "h", f"h{number}") for number in range(3)]
    crowd = [("crowd", f"key{number % keys}", "k") for number in range(keys * each)]
    order = crowd + honest if crowd_first else honest + crowd
    dropped = [item for block, sender, said in order for item in lanes.put(block, sender, said, 10)]
    assert not [item for item in dropped if item != "k"], "who sends little loses nothing"
    turns = [lanes.take() for _ in range(min(most, 6))]
    waiting = min(3, len(crowd) - len(dropped))
    assert sum(item == "k" for item in turns[: 2 * waiting]) == waiting, "every second turn, and no more"


# Whoever wants a dataset stays connected with some that serve it, at a bounded price.

STEP = 5.0


def named(number: int) -> DatasetId:
    return DatasetId.from_public_key(number.to_bytes(32, "big"))


class World:
    """``serving``: of each dataset those connected, and those who would come."""

    def __init__(self, wanted: Sequence[DatasetId]) -> None:
        self.wanted = wanted
        self.holders = HolderConnections()
        self.connected: Counter[DatasetId] = Counter()
        self.others: Counter[DatasetId] = Counter()
        self.met: list[tuple[float, Meet]] = []
        self.now = 0.0

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += STEP
            meet = self.holders.step(self.wanted, self.connected.__getitem__, self.now)
            if meet is not None:
                self.met.append((self.now, meet))
                new = min(meet.most, self.others[meet.dataset])
                self.others[meet.dataset] -= new
                self.connected[meet.dataset] += new
                if new:
                    self.holders.note_met(meet.dataset, self.connected[meet.dataset])


def test_two_are_kept_and_others_met_at_once_when_they_go() -> None:
    one = named(1)
    world = World([one])
    world.others[one] = 100
    world.run(STEP)
    assert world.connected[one] == ENOUGH
    world.run(600)
    world.connected[one] = 0
    world.run(STEP)
    assert world.connected[one] == ENOUGH


def test_another_is_met_now_and_then_though_two_are_there() -> None:
    """Attack T-HEAD-07: presences of unlisted peers that name every dataset, to be a mirror's only connections.

    Defence: data that they withhold is delayed until the next random peer, one each half an hour; false data is not
    accepted.

    They may follow each other alone, or be strangers who say that they serve everything.
    """
    one = named(1)
    world = World([one])
    world.connected[one], world.others[one] = 2, 1000
    world.run(36_000)
    assert {meet.most for _, meet in world.met} == {1}
    assert 20 <= len(world.met) <= 30, "half an hour apart, in the end"


def test_looking_for_who_is_not_there_becomes_rare_and_stops_never() -> None:
    one = named(1)
    world = World([one])
    world.run(36_000)
    assert 115 <= len(world.met) <= 130, "five minutes apart, where nobody serves it"
    world.connected[one] = 1
    world.run(36_000)
    assert 15 <= len(world.met) - 122 <= 30, "and half an hour, where one does"


def test_ten_thousand_datasets_cost_no_more_than_one_attempt_a_step_and_all_have_their_turn() -> None:
    wanted = [named(number) for number in range(2000)]
    world = World(wanted)
    world.run(4 * 2000 * STEP)
    assert len(world.met) <= 4 * 2000
    tried = Counter(meet.dataset for _, meet in world.met)
    assert min(tried[each] for each in wanted) >= 2


# What two peers hold is reconciled, and what a mirror wants is implied.


# One asks, the other answers: afterwards the asker has seen all that it lacked.


def ref(number: int) -> StatementRef:
    return StatementRef(
        Multihash.from_digest(0x16, number.to_bytes(32, "big")), DatasetId.from_public_key(bytes([number % 7]) * 32)
    )


def met(
    mine: list[StatementRef], theirs: dict[Multihash, bytes], datasets: list[DatasetId] | None = None
) -> list[bytes]:
    """What a round shows, with every message through its codec."""
    refs = {sid: ref(int.from_bytes(sid.digest, "big")) for sid in theirs}

    def held(wanted: object) -> list[StatementRef]:
        return [one for one in refs.values() if not wanted or one.dataset in wanted]

    def envelope(sid: Multihash) -> tuple[Topic, bytes] | None:
        return (Topic.HEADS, theirs[sid]) if sid in theirs else None

    machine = Reconcile(mine, datasets)
    effects, shown = machine.start(), []
    for _ in range(3000):
        effect, *effects = effects
        match effect:
            case Fetch(ask):
                told = trust.encode(reconcile.answer(trust.decode_ask(trust.encode(ask)), held, envelope))
                assert len(told) <= MAX_TRUST_REPLY
                effects = machine.handle(trust.decode_tell(told))
            case Show(statements):
                shown += [signed.envelope for signed in statements]
            case Done():
                return shown
    raise AssertionError("it never ends")


@given(st.sets(st.integers(0, 400)), st.sets(st.integers(0, 400)))
def test_prop_all_that_was_lacking_and_nothing_else(mine: set[int], theirs: set[int]) -> None:
    shown = met([ref(number) for number in mine], {ref(number).sid: b"%d" % number for number in theirs})
    assert sorted(shown) == sorted(b"%d" % number for number in theirs - mine)


@pytest.mark.slow
def test_many_and_large() -> None:
    """More than a page of names, and envelopes of which few fit a reply."""
    count = MAX_LISTED + 500
    assert len(met([], {ref(number).sid: b"x" for number in range(count)})) == count
    assert len(met([], {ref(number).sid: bytes(90_000) for number in range(40)})) == 40


def test_some_datasets_only() -> None:
    wanted = ref(3).dataset
    shown = met([ref(3)], {ref(number).sid: b"%d" % number for number in range(30)}, [wanted])
    assert sorted(shown) == [b"10", b"17", b"24"]


@pytest.mark.parametrize(
    "page",
    [
        trust.page([ref(5)], more=False),
        trust.Listing({str(ref(3).dataset): (ref(3).sid,)}, more=ref(10).sid),
        trust.Listing({}, more=ref(3).sid),
        trust.Statements((), done=1),
    ],
)
def test_listings_that_were_not_asked_for(page: trust.TrustTell) -> None:
    machine = Reconcile([], [ref(3).dataset])
    machine.start()
    with pytest.raises(Invalid):
        machine.handle(page)


def test_a_refusal_ends_the_round() -> None:
    machine = Reconcile([])
    machine.start()
    assert machine.handle(trust.TrustRefusal("too many questions")) == [Done(refused="too many questions")]


def test_seen_forgets_the_longest_unmet() -> None:
    seen = Seen(2)
    assert seen.add(b"1")
    assert seen.add(b"2")
    assert not seen.add(b"1")
    assert seen.add(b"3")
    assert (b"1" in seen, b"2" in seen, len(seen)) == (True, False, 2)


# Who asked for a dataset lately is remembered, within bounds.

A, B = PeerId("a"), PeerId("b")


def test_a_question_counts_for_an_hour_and_for_who_is_there() -> None:
    subscriptions = ImpliedSubscriptions()
    subscriptions.note(A, [named(1), named(2)], 0.0)
    subscriptions.note(B, [named(2)], 10.0)
    assert subscriptions.of([named(2), named(9)], [A, B], 20.0) == {A, B}
    assert subscriptions.of([named(1)], [A, B], 20.0) == {A}
    assert subscriptions.of([named(2)], [A], 20.0) == {A}, "of whom is connected"
    assert subscriptions.of([named(2)], [A, B], LASTS + 1) == {B}
    subscriptions.note(A, [named(2)], LASTS)
    assert subscriptions.of([named(2)], [A, B], LASTS + 11) == {A}


def test_who_asks_for_everything_is_remembered_for_the_latest() -> None:
    """Attack T-PEER-04: keys that request statements on every dataset, to fill memory with their requests.

    Defence: the latest 1,024 of a peer, 256 peers, for an hour.
    """
    subscriptions = ImpliedSubscriptions()
    for first in range(0, 4 * MAX_ASKED, 256):
        subscriptions.note(A, map(named, range(first, first + 256)), 0.0)
    asked = [number for number in range(4 * MAX_ASKED) if subscriptions.of([named(number)], [A], 1.0)]
    assert asked == list(range(3 * MAX_ASKED, 4 * MAX_ASKED))


def test_keys_push_out_nobody_who_goes_on_asking() -> None:
    subscriptions = ImpliedSubscriptions()
    for number in range(4 * MAX_PEERS):
        subscriptions.note(PeerId(f"free{number}"), [named(1)], 0.0)
        if number % 100 == 0:
            subscriptions.note(A, [named(1)], 0.0)
    everybody = [A, *(PeerId(f"free{number}") for number in range(4 * MAX_PEERS))]
    found = subscriptions.of([named(1)], everybody, 1.0)
    assert A in found
    assert len(found) == MAX_PEERS


# Caps on bytes a second.


def test_without_a_cap_nothing_waits() -> None:
    pace = Pace(0)
    assert [pace.take(1 << 40, 5.0) for _ in range(3)] == [5.0, 5.0, 5.0]


def test_what_is_larger_than_a_second_is_paid_for_by_the_next() -> None:
    pace = Pace(100)
    assert pace.take(1000, 50.0) == 50.0
    assert pace.due(50.0) == 50.0 - BURST + 10
    assert pace.take(100, 70.0) == 70.0
    assert pace.take(100, 70.0) == 70.0
    assert pace.take(100, 70.0) == 71.0


@given(
    st.integers(1, 10**6),
    st.lists(st.tuples(st.floats(0, 10), st.integers(0, 10**6)), min_size=1, max_size=40),
)
def test_over_any_stretch_no_more_goes_than_the_rate(rate: int, asks: list[tuple[float, int]]) -> None:
    """Beside a second's worth and the last piece; and who waits goes in the order of asking."""
    pace, now, went = Pace(rate), 0.0, []
    for later, size in asks:
        now += later
        went.append((pace.take(size, now), size))
        assert went[-1][0] >= now
    assert [at for at, _ in went] == sorted(at for at, _ in went)
    for start in range(len(went)):
        for stop in range(start, len(went)):
            sent = sum(size for _, size in went[start:stop])
            allowed = rate * (went[stop][0] - went[start][0] + BURST)
            assert sent <= allowed + 1e-3 * rate + 1 or sent <= max(size for _, size in went[start:stop]) + allowed


@given(st.integers(0, 1 << 32))
def test_questions_fit_the_cap(rate: int) -> None:
    for shape in (CHAIN_SHAPE, OBJECT_SHAPE):
        asked = fit_to_rate(shape, rate)
        assert LEAST_PART <= asked.most_bytes <= shape.most_bytes
        assert asked.most_bytes <= asked.window <= shape.window
        assert asked.most_units <= shape.most_units


@given(
    st.lists(st.tuples(st.floats(0, 30), st.integers(0, 10**9)), max_size=40),
    st.floats(0, 12),
)
def test_a_rate_is_of_the_bytes_of_the_last_seconds_however_they_came(
    came: list[tuple[float, int]], later: float
) -> None:
    recent, came = RecentBytes(), sorted(came)
    for at, amount in came:
        recent.add(amount, at)
    now = max([at for at, _ in came], default=0.0) + later
    seconds = range(int(now) - WINDOW + 1, int(now) + 1)
    expected = sum(amount for at, amount in came if int(at) in seconds)
    assert recent.rate(now) * (WINDOW - 1 + now - int(now)) == pytest.approx(expected)
    assert recent.rate(now + WINDOW + 1) == 0


def test_a_rate_after_a_long_silence_costs_no_more() -> None:
    recent = RecentBytes()
    recent.add(5, 3.0)
    recent.add(7, 1e12)
    assert recent.rate(1e12) == 7 / (WINDOW - 1)


def test_lines_count_for_the_node_and_by_themselves() -> None:
    total = Traffic()
    first, second = LineTraffic(total), LineTraffic(total)
    first.came(70, 10.0)
    second.came(7, 10.0)
    second.went(14, 10.0)
    assert (total.received, total.sent) == (77, 14)
    assert PeerTraffic.of([second], 10.0) == PeerTraffic(7, 14, 1.0, 2.0)
    assert PeerTraffic.of([first, second], 10.0) == PeerTraffic(77, 14, 11.0, 2.0)
    assert PeerTraffic.of([], 10.0) == PeerTraffic()

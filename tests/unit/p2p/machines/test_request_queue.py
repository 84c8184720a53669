"""Turns: fair between peers and between what one peer asks for; bounded; nothing lost."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from chain.ids import DatasetId
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
from p2p.ports import PeerId
from p2p.wire.chains import BlockRange
from p2p.wire.refusal import RefusalReason

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
    """Fifty keys of one block of addresses ask without end, and one elsewhere gets half of what is read."""
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

"""The giving side under rude peers: garbage, silence, floods, slow readers. Others must not notice."""

from __future__ import annotations

from typing import Any

import pytest
import structlog
import trio

from chain.errors import Environment, Refused
from chain.ids import DatasetId
from chain.multihash import Multihash
from p2p.driver.framing import FramedStream
from p2p.driver.inbound import PATIENCE
from p2p.driver.serve import MAX_STREAMS
from p2p.errors import PeerFault
from p2p.machines.request_queue import MAX_WAITING
from p2p.ports import Topic
from p2p.wire import chains, objects, presence, trust
from p2p.wire.chains import BlockRange, Blocks
from p2p.wire.limits import MAX_REPLY, MAX_REQUEST, MAX_TRUST_REQUEST
from p2p.wire.objects import ObjectRange
from p2p.wire.refusal import PeerRefusal, RefusalReason

DATASET = DatasetId.from_public_key(b"d" * 32)
BIG = bytes(3 << 20)
NAME = Multihash.sha3_256(BIG)


def question(number: int, start: int = 0) -> bytes:
    return chains.encode_range(BlockRange(request=number, dataset=DATASET, start=start))


async def giver_and_guest(town: Any, **settings: Any) -> tuple[Any, Any]:
    giver = await town.node("giver", **settings)
    giver.shelf.chains[DATASET] = town.made_chain("x", 20)
    giver.shelf.things[NAME] = BIG
    guest = town.bare("guest")
    town.fabric.join(guest, giver.host)
    await trio.testing.wait_all_tasks_blocked()
    return giver, guest


@pytest.mark.parametrize("protocol", [chains.PROTOCOL, objects.PROTOCOL, trust.PROTOCOL])
@pytest.mark.parametrize(
    "speech",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0\0\0\0",
        b"\0\0\0\x03abc",
        b"\0\0\0\x37" + bytes(55),
        b"\xff" * 400,
        b"\0\0\0\x02{}",
    ],
)
async def test_garbage_costs_the_speaker(autojump_clock: Any, town: Any, protocol: str, speech: bytes) -> None:
    giver, guest = await giver_and_guest(town)
    stream = await guest.open_stream(giver.peer, protocol)
    await stream.send_all(speech)
    await trio.testing.wait_all_tasks_blocked()
    assert giver.score(guest) <= -19
    honest = await town.node("honest", connect=[giver])
    assert await honest.driver.chain_size(giver.peer, DATASET) == 20


async def test_one_over_every_request_limit(autojump_clock: Any, town: Any) -> None:
    giver, guest = await giver_and_guest(town)
    for protocol, limit in ((chains.PROTOCOL, MAX_REQUEST), (trust.PROTOCOL, MAX_TRUST_REQUEST)):
        before = giver.score(guest)
        stream = await guest.open_stream(giver.peer, protocol)
        await stream.send_all((limit + 1).to_bytes(4, "big"))
        await trio.testing.wait_all_tasks_blocked()
        assert giver.score(guest) < before - 19


async def test_who_keeps_on_is_shut_out(autojump_clock: Any, town: Any) -> None:
    giver, guest = await giver_and_guest(town)
    for _ in range(6):
        if giver.peer in guest.links:
            stream = await guest.open_stream(giver.peer, chains.PROTOCOL)
            await stream.send_all(b"\xff" * 100)
            await trio.testing.wait_all_tasks_blocked()
    assert giver.peer not in guest.links
    assert [view.blocked for view in giver.driver.peers() if view.peer == guest.peer_id] == [True]
    town.fabric.join(guest, giver.host)
    await trio.testing.wait_all_tasks_blocked()
    assert giver.peer not in guest.links, "and is not let in again at once"


async def test_silence_costs_nothing(autojump_clock: Any, town: Any) -> None:
    giver, guest = await giver_and_guest(town)
    streams = [await guest.open_stream(giver.peer, trust.PROTOCOL) for _ in range(2)]
    await trio.sleep(100)
    for stream in streams:
        assert await stream.receive_some(10) == b""
    assert giver.score(guest) == 0


async def test_more_streams_than_allowed_are_reset(autojump_clock: Any, town: Any) -> None:
    giver, guest = await giver_and_guest(town)
    streams = [await guest.open_stream(giver.peer, chains.PROTOCOL) for _ in range(MAX_STREAMS + 1)]
    await trio.testing.wait_all_tasks_blocked()
    with pytest.raises(PeerFault):
        await streams[-1].receive_some(10)
    framed = FramedStream(streams[0], giver.peer, MAX_REPLY)
    await framed.write(question(7))
    answer = chains.decode_chain_reply(await framed.read() or b"")
    assert isinstance(answer, Blocks)
    assert answer.blocks == giver.shelf.chains[DATASET]


PROTOCOLS = {chains.PROTOCOL: 2, objects.PROTOCOL: 2, trust.PROTOCOL: 2, presence.PROTOCOL: 1}
"""How many streams of one peer each protocol listens to at once."""


async def is_reset(stream: Any) -> bool:
    with trio.move_on_after(0.5):
        try:
            return not await stream.receive_some(10)
        except PeerFault:
            return True
    return False


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_further_stream_waits_a_moment_for_its_place(autojump_clock: Any, town: Any, protocol: str) -> None:
    """One opened before the end of an earlier one was seen is served; those that nobody makes room for are not."""
    giver, guest = await giver_and_guest(town)
    most = PROTOCOLS[protocol]
    first = [await guest.open_stream(giver.peer, protocol) for _ in range(most)]
    await trio.testing.wait_all_tasks_blocked()
    further = await guest.open_stream(giver.peer, protocol)
    await trio.testing.wait_all_tasks_blocked()
    await first[0].send_eof()
    await trio.testing.wait_all_tasks_blocked()
    assert await is_reset(first[0])
    assert not await is_reset(further)
    late = [await guest.open_stream(giver.peer, protocol) for _ in range(most + 1)]
    await trio.testing.wait_all_tasks_blocked()
    assert [await is_reset(each) for each in late[-1:]] == [True]
    assert not await is_reset(late[0])
    await trio.sleep(PATIENCE)
    assert await is_reset(late[0])
    assert giver.score(guest) == 0


async def test_a_flood_of_questions_is_refused_and_noted(autojump_clock: Any, town: Any) -> None:
    giver, guest = await giver_and_guest(town)
    framed = FramedStream(await guest.open_stream(giver.peer, chains.PROTOCOL), giver.peer, MAX_REPLY)
    flood = b"".join(
        len(body).to_bytes(4, "big") + body for body in (question(number) for number in range(MAX_WAITING + 12))
    )
    await framed._stream.send_all(flood)
    await trio.testing.wait_all_tasks_blocked()
    replies = [chains.decode_chain_reply(await framed.read() or b"") for _ in range(MAX_WAITING + 12)]
    refused = [reply for reply in replies if isinstance(reply, PeerRefusal)]
    assert {reply.reason for reply in refused} == {RefusalReason.BUSY}
    assert 1 <= len(refused) <= 11
    assert giver.score(guest) == pytest.approx(-len(refused), abs=0.1)
    assert {reply.request for reply in replies} == set(range(MAX_WAITING + 12))


async def test_a_slow_reader_holds_two_answers_and_ends(autojump_clock: Any, town: Any) -> None:
    """It asks for much and reads nothing: its stream ends after the patience, and others are served meanwhile."""
    giver, guest = await giver_and_guest(town)
    guest.lockstep = True
    stream = await guest.open_stream(giver.peer, objects.PROTOCOL)
    for number in range(20):
        body = objects.encode_read(ObjectRange(request=number, name=NAME, offset=0))
        await stream.send_all(len(body).to_bytes(4, "big") + body)
    honest = await town.node("honest", connect=[giver])
    assert await honest.driver.chain_size(giver.peer, DATASET) == 20
    part = town.Part(NAME)
    await honest.driver.fetch_object([giver.peer], NAME, len(BIG), part)
    assert part.visible == BIG
    assert trio.current_time() < 25
    assert giver.shelf.reads <= 3 + 2, "two answers of the slow reader are in memory, not twenty"
    await trio.sleep(60)
    with pytest.raises(PeerFault):  # noqa: PT012 - what was on its way before still comes
        while True:
            await stream.receive_some(1 << 20)


async def test_refusals_say_why(autojump_clock: Any, town: Any) -> None:
    giver, _ = await giver_and_guest(town)
    puller = await town.node("puller", connect=[giver])
    with pytest.raises(PeerFault, match="does not have it"):
        await puller.driver.fetch_object([giver.peer], Multihash.sha3_256(b"?"), 5, town.Part(NAME))

    def refuse(dataset: DatasetId) -> int:
        raise Refused("policy says no")

    giver.shelf.size = refuse
    with pytest.raises(PeerFault, match=r"does not serve it .policy says no"):
        await puller.driver.chain_size(giver.peer, DATASET)

    def broken(dataset: DatasetId) -> int:
        raise Environment("the disk at /secret/place is gone")

    giver.shelf.size = broken
    with pytest.raises(PeerFault, match=r"cannot read it$"):
        await puller.driver.chain_size(giver.peer, DATASET)


async def test_a_bug_behind_the_port_costs_one_answer(autojump_clock: Any, town: Any) -> None:
    giver, _ = await giver_and_guest(town)
    puller = await town.node("puller", connect=[giver], question_patience=5.0)
    good = giver.shelf.size
    giver.shelf.size = lambda dataset: 1 // 0
    with structlog.testing.capture_logs() as said, pytest.raises(PeerFault, match="no answer in 5 s"):
        await puller.driver.chain_size(giver.peer, DATASET)
    giver.shelf.size = good
    assert await puller.driver.chain_size(giver.peer, DATASET) == 20
    assert any("exc_info" in entry for entry in said)


async def test_draining_lets_answers_out_and_takes_no_more(autojump_clock: Any, town: Any) -> None:
    giver, guest = await giver_and_guest(town, drain=5.0)
    guest.lockstep = True
    stream = await guest.open_stream(giver.peer, chains.PROTOCOL)
    body = question(1)
    await stream.send_all(len(body).to_bytes(4, "big") + body)
    drained = trio.Event()

    async def drain() -> None:
        await giver.driver.drain()
        drained.set()

    town.nursery.start_soon(drain)
    await trio.testing.wait_all_tasks_blocked()
    assert not drained.is_set()
    framed = FramedStream(stream, giver.peer, MAX_REPLY)
    assert isinstance(chains.decode_chain_reply(await framed.read() or b""), Blocks)
    await drained.wait()
    assert trio.current_time() < 5
    late = await guest.open_stream(giver.peer, chains.PROTOCOL)
    with pytest.raises(PeerFault):
        await late.receive_some(10)


async def test_who_asks_is_whose_key_the_connection_proved(town: Any) -> None:
    """What is given to one peer is not given to another, whatever it asks: by each protocol that gives."""
    giver, guest = await giver_and_guest(town)
    listed = town.bare("listed")
    town.fabric.join(listed, giver.host)
    statement = b"ok" + bytes(DATASET)
    giver.board.held[Multihash.sha3_256(statement)] = (Topic.HEADS, statement, DATASET)
    nothing = type(giver.shelf)(), type(giver.board)()
    giver.shelf.to = lambda peer: giver.shelf if peer == listed.peer_id else nothing[0]
    giver.board.to = lambda peer: giver.board if peer == listed.peer_id else nothing[1]
    asked = {
        chains.PROTOCOL: [question(1)],
        objects.PROTOCOL: [objects.encode_read(ObjectRange(request=1, name=NAME, offset=0, length=9))],
        trust.PROTOCOL: [
            trust.encode(trust.GetAsk((Multihash.sha3_256(statement),))),
            trust.encode(trust.ListAsk(datasets=(DATASET,), private=True)),
            trust.encode(trust.ProveAsk(dataset=DATASET, size=20, index=1)),
        ],
    }
    for protocol, questions in asked.items():
        for body in questions:
            answers = []
            for host in (listed, guest):
                stream = FramedStream(await host.open_stream(giver.peer, protocol), giver.peer, MAX_REPLY)
                await stream.write(body)
                answers.append(await stream.read())
                await stream.reset()
                await trio.testing.wait_all_tasks_blocked()
            assert None not in answers
            assert answers[0] != answers[1], body
            assert DATASET.public_key.hex() not in answers[1].decode("latin-1")

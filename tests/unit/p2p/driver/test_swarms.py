"""What nodes tell each other of objects that they have, and whom a holder names to those who ask."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from chain.ids import DatasetId
from chain.multihash import Multihash
from p2p.driver.swarms import MEET_RATE
from p2p.errors import Misbehaviour, PeerFault, ProtocolUnsupported
from p2p.ports import HeldParts, PartsAsk, PiecesAsk, Tip
from p2p.wire import presence
from p2p.wire.presence import Presence
from p2p.wire.swarm import SWARM_PROTOCOL, PartsTold, encode_told

DATASET = DatasetId.from_public_key(b"s" * 32)
ASK = PartsAsk(dataset=DATASET, tip=Tip(4, bytes(32)), start=0, count=4, have=0b1000)
PARTS = HeldParts(has=0b1111, offers=0b0011, given=7)


def holder(node: Any, parts: HeldParts | None = PARTS, *, is_public: bool = True) -> list[PartsAsk]:
    """Has a node tell these; returns what it is asked."""
    asked: list[PartsAsk] = []

    def told(ask: PartsAsk) -> HeldParts | None:
        asked.append(ask)
        return parts

    node.shelf.parts = told
    node.shelf.size = lambda _dataset: int(is_public)
    return asked


async def test_a_question_and_its_answer(town: Any) -> None:
    giver = await town.node("giver")
    asked = holder(giver)
    asker = await town.node("asker", connect=[giver])
    assert await asker.driver.ask_parts(giver.peer, ASK) == PARTS
    assert asked == [ASK]
    holder(giver, None)
    assert await asker.driver.ask_parts(giver.peer, ASK) is None
    assert (asker.score(giver), giver.score(asker)) == (0, 0)


NAME = Multihash.sha3_256(b"object")
PIECES = PiecesAsk(dataset=DATASET, name=NAME, size=9 << 20, root=bytes(32), have=1)


async def test_pieces_and_their_list_are_asked_for(town: Any) -> None:
    giver = await town.node("giver")
    asked: list[Any] = []
    listed = bytes(32 * 9), bytes(64)

    def pieces(ask: PiecesAsk) -> HeldParts:
        asked.append(ask)
        return PARTS

    giver.shelf.pieces = pieces
    giver.shelf.piece_list = lambda *ask: asked.append(ask) or listed
    asker = await town.node("asker", connect=[giver])
    assert await asker.driver.ask_pieces(giver.peer, PIECES) == PARTS
    assert await asker.driver.piece_list(giver.peer, DATASET, NAME, 9 << 20) == listed
    assert asked == [PIECES, (DATASET, NAME, 9 << 20)]
    giver.shelf.pieces = giver.shelf.piece_list = lambda *_: None
    assert await asker.driver.ask_pieces(giver.peer, PIECES) is None
    assert await asker.driver.piece_list(giver.peer, DATASET, NAME, 9 << 20) is None
    assert (asker.score(giver), giver.score(asker)) == (0, 0)


async def test_a_list_of_another_length_is_penalised(town: Any) -> None:
    giver = await town.node("giver")
    giver.shelf.piece_list = lambda *_: (bytes(32 * 8), bytes(64))
    asker = await town.node("asker", connect=[giver])
    with pytest.raises(Misbehaviour):
        await asker.driver.piece_list(giver.peer, DATASET, NAME, 9 << 20)
    assert asker.score(giver) < 0


async def test_an_older_peer_has_no_such_protocol_and_no_blame(town: Any) -> None:
    giver = await town.node("giver")
    del giver.host.handlers[SWARM_PROTOCOL]
    asker = await town.node("asker", connect=[giver])
    with pytest.raises(ProtocolUnsupported):
        await asker.driver.ask_parts(giver.peer, ASK)
    assert asker.score(giver) == 0


@pytest.mark.slow
@pytest.mark.parametrize("is_public", [True, False])
async def test_a_holder_names_those_who_ask_and_they_meet(town: Any, is_public: bool) -> None:
    """Of what is shared with some alone, nobody is named: the owner's friends need not know of each other."""
    giver = await town.known(1, degree=0)
    holder(giver, is_public=is_public)
    one, other = [await town.known(number, connect=[giver], degree=0) for number in (2, 3)]
    await trio.sleep(1)  # virtual: until all have told each other where they are
    await one.driver.ask_parts(giver.peer, ASK)
    await other.driver.ask_parts(giver.peer, ASK)
    await trio.sleep(1)
    assert other.host.is_connected(one.peer) == is_public


@pytest.mark.slow
async def test_who_names_many_brings_few_dials(town: Any) -> None:
    """Of presences that are well signed: others are refused, and whoever names them is penalised."""
    from chain.statements.keys import SigningKey

    def made(number: int) -> bytes:
        key = SigningKey(number.to_bytes(32, "big"))
        address = f"/ip4/10.1.{number // 250}.{number % 250 + 1}/tcp/4150"
        said = Presence(key=key.public, issued=1_700_000_000_000, lifetime=3600, addresses=(address,))
        return presence.seal(said, "test", key)

    names = [made(number) for number in range(100, 180)]

    async def answer(stream: Any, _peer: Any) -> None:
        await stream.receive_some(1000)
        body = encode_told(PartsTold(PARTS, tuple(names[:8])), ASK.count)
        del names[:8]
        await stream.send_all(len(body).to_bytes(4, "big") + body)

    liar = town.bare("liar")
    liar.set_handler(SWARM_PROTOCOL, answer)
    asker = await town.node("asker", connect=[liar], degree=0)
    while names:
        await asker.driver.ask_parts(liar.peer_id, ASK)
    await trio.sleep(1)
    assert len(asker.host.dials) <= MEET_RATE.burst + 2


@pytest.mark.parametrize("body", [b"\x81", b"\x81" + bytes(10), b"garbage"])
async def test_garbage_is_penalised(town: Any, body: bytes) -> None:
    async def answer(stream: Any, _peer: Any) -> None:
        await stream.receive_some(1000)
        await stream.send_all(len(body).to_bytes(4, "big") + body)

    liar = town.bare("liar")
    liar.set_handler(SWARM_PROTOCOL, answer)
    asker = await town.node("asker", connect=[liar])
    with pytest.raises(Misbehaviour):
        await asker.driver.ask_parts(liar.peer_id, ASK)
    assert asker.score(liar) < 0


@pytest.mark.slow
async def test_a_peer_that_says_nothing_is_left(town: Any) -> None:
    async def silent(_stream: Any, _peer: Any) -> None:
        await trio.sleep_forever()

    mute = town.bare("mute")
    mute.set_handler(SWARM_PROTOCOL, silent)
    asker = await town.node("asker", connect=[mute])
    with pytest.raises(PeerFault, match="10 s"):
        await asker.driver.ask_parts(mute.peer_id, ASK)

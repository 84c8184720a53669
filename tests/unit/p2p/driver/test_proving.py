"""A peer proves that what has come so far is the beginning of what was signed; one that cannot proves nothing."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from chain.errors import Invalid, Remote
from chain.ids import DatasetId
from chain.statements.tree import Frontier, root_from_inclusion
from p2p.errors import PeerFault
from p2p.ports import PeerId, Tip, TreeRoot
from p2p.wire import trust
from p2p.wire.frames import frame
from p2p.wire.trust import ProveAsk

DATASET = DatasetId.from_public_key(b"p" * 32)


def head(chain: tuple[bytes, ...], size: int) -> TreeRoot:
    return TreeRoot(size, Frontier().extend(hashlib.sha3_256(raw).digest() for raw in chain[:size]).root)


def tip(chain: tuple[bytes, ...], size: int) -> Tip:
    return Tip(size, hashlib.sha3_256(chain[size - 1]).digest())


async def giver(town: Any, chain: tuple[bytes, ...]) -> Any:
    node = await town.node("giver")
    node.shelf.chains[DATASET] = chain
    return node


async def test_a_beginning_is_proven(autojump_clock: Any, town: Any) -> None:
    chain = town.made_chain("c", 100)
    node = await giver(town, chain)
    asker = await town.node("asker", connect=[node])
    for size in (1, 2, 63, 64, 65, 99, 100):
        assert await asker.driver.prove_prefix([node.peer], DATASET, head(chain, size), head(chain, 100))
    other = town.made_chain("d", 100)
    assert not await asker.driver.prove_prefix([node.peer], DATASET, head(other, 50), head(chain, 100))
    assert asker.score(node) == 0


async def test_a_block_is_proven(autojump_clock: Any, town: Any) -> None:
    chain = town.made_chain("c", 37)
    node = await giver(town, chain)
    asker = await town.node("asker", connect=[node])
    path = await asker.driver._statements.prove(node.peer, ProveAsk(dataset=DATASET, size=37, index=20))
    leaf = hashlib.sha3_256(chain[20]).digest()
    assert root_from_inclusion(leaf, 20, 37, path) == head(chain, 37).root


async def test_a_proof_that_proves_nothing_moves_nothing(autojump_clock: Any, town: Any) -> None:
    chain = town.made_chain("c", 100)
    node = await giver(town, chain)

    async def lie(stream: Any, peer: Any) -> None:
        await stream.receive_some(1 << 16)
        await stream.send_all(frame(trust.encode(trust.ProofAnswer(("00" * 32,) * 3))))
        await trio.sleep(1)

    liar = town.bare("liar", trust=lie)
    asker = await town.node("asker", connect=[node, liar])
    await trio.sleep(1)
    before = asker.score(liar)
    assert await asker.driver.prove_prefix([liar.peer_id, node.peer], DATASET, head(chain, 40), head(chain, 100))
    assert asker.score(liar) == before, "it may hold another history"
    assert not await asker.driver.prove_prefix([liar.peer_id], DATASET, head(chain, 40), head(chain, 100))


async def test_a_whole_chain_is_shown_by_its_last_block(autojump_clock: Any, town: Any) -> None:
    chain, other = town.made_chain("c", 100), town.made_chain("d", 100)
    node = await giver(town, chain)
    asker = await town.node("asker", connect=[node])
    for size in (1, 2, 64, 100):
        assert await asker.driver.holds(node.peer, DATASET, tip(chain, size))
        assert not await asker.driver.holds(node.peer, DATASET, tip(other, size))
    assert not await asker.driver.holds(PeerId("ghost"), DATASET, tip(chain, 1))
    node.shelf.chains[DATASET] = chain[:99]
    assert not await asker.driver.holds(node.peer, DATASET, tip(chain, 100))
    assert asker.score(node) == 0


async def test_nobody_who_can_prove(autojump_clock: Any, town: Any) -> None:
    chain = town.made_chain("c", 10)
    node = await giver(town, chain[:5])
    asker = await town.node("asker", connect=[node])
    with pytest.raises(Remote, match="a tree of 10 blocks of that dataset is not served here"):
        await asker.driver.prove_prefix([node.peer], DATASET, head(chain, 4), head(chain, 10))
    with pytest.raises(PeerFault):
        await asker.driver._statements.prove(node.peer, ProveAsk(dataset=DATASET, size=6, index=5))


@pytest.mark.parametrize("fields", [{}, {"old": 9}, {"old": 1, "index": 1}, {"index": 8}, {"old": 0}])
def test_what_cannot_be_asked(fields: dict[str, int]) -> None:
    with pytest.raises(Invalid):
        trust.decode_ask(trust.encode(ProveAsk(dataset=DATASET, size=8, **fields)))


@given(st.binary(max_size=200))
def test_garbage_is_no_proof(body: bytes) -> None:
    with pytest.raises(Invalid):
        trust.decode_tell(b'{"tell":"proof","nodes":' + body)

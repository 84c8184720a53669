"""Proposals of other nodes to a node's own datasets: who may, what is checked, stored and signed."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.codec.blocks import encode_block
from chain.errors import Conflict, Environment, Fault, Invalid, NotFound, Refused
from chain.ids import DatasetId
from chain.instant import to_millis
from chain.model.block import Block, MetadataBlock
from chain.model.events import SetInfo
from chain.multihash import Multihash
from chain.state import load_state
from chain.store.base import Head
from chain.store.shards import (
    SEALED,
    Committed,
    Conflicting,
    Equivalent,
    Gap,
    Proposal,
    Same,
    Shard,
    ShardSealed,
    Stale,
)
from odfd.control import wire
from odfd.trust.ledger.log import Ledger
from p2p.identity import peer_of_did
from p2p.wire.propose import (
    RefusedProposal,
    Wanted,
    decode_answer,
    decode_ask,
    decode_propose,
    encode_ask,
    encode_outcomes,
    encode_propose,
    encode_refused,
    encode_shards,
    encode_want,
)

DIDS = st.binary(min_size=32, max_size=32).map(DatasetId.from_public_key)
HASHES = st.binary(max_size=8).map(Multihash.sha3_256)
TIMES = st.integers(0, SEALED)
SHARDS = st.builds(Shard, st.one_of(st.none(), st.builds(Head, HASHES, st.integers(0, 1 << 40))), TIMES)
NAMES = st.lists(HASHES, max_size=3).map(tuple)
OUTCOMES = st.one_of(
    *(st.builds(kind, SHARDS) for kind in (Committed, Same, Equivalent, Stale, ShardSealed)),
    st.builds(Gap, SHARDS, TIMES),
    st.builds(Conflicting, SHARDS, TIMES, NAMES, NAMES),
)
PROPOSALS = st.builds(
    Proposal,
    dataset=DIDS,
    new_upper=TIMES,
    objects=st.lists(HASHES, max_size=3),
    follows=st.one_of(st.none(), DIDS),
)


SOME = {"min_size": 1, "max_size": 4}


@given(st.lists(PROPOSALS, **SOME), st.lists(OUTCOMES, **SOME), st.lists(SHARDS, **SOME))
def test_messages_are_read_as_they_were_written(
    proposals: list[Proposal], outcomes: list[Any], shards: list[Shard]
) -> None:
    read = decode_propose(encode_propose(proposals))
    assert [(each.dataset, each.new_upper, list(each.objects), each.follows) for each in read] == [
        (each.dataset, each.new_upper, list(each.objects), each.follows) for each in proposals
    ]
    assert decode_ask(encode_ask([each.dataset for each in proposals])) == [each.dataset for each in proposals]
    assert decode_answer(encode_outcomes(outcomes)) == tuple(outcomes)
    assert decode_answer(encode_shards(shards)) == tuple(shards)
    wanted = Wanted(Multihash.sha3_256(b"x"), 7)
    assert decode_answer(encode_want(wanted)) == wanted


@given(st.binary(max_size=200), st.sampled_from([b"", b"\x01", b"\x02", b"\x81", b"\x82", b"\x83", b"\x84"]))
def test_any_bytes_are_a_message_or_invalid(body: bytes, kind: bytes) -> None:
    for decode in (decode_propose, decode_ask, decode_answer):
        try:
            decode(kind + body)
        except Invalid:
            continue


@pytest.mark.parametrize("family", [Invalid, Refused, NotFound, Conflict, Environment])
def test_a_refusal_keeps_its_family_and_its_rule(family: type[Fault]) -> None:
    found = decode_answer(encode_refused(family("why", rule="because")))
    assert isinstance(found, RefusedProposal)
    assert (type(found.fault), found.fault.message, found.fault.rule) == (family, "why", "because")


def noted(node: Any, text: str) -> tuple[Proposal, Block]:
    """A transaction for a dataset of a node, as another writer makes it."""
    dataset = node.dataset("cities")
    state, now = load_state(node.home.chains.chain(dataset)), node.clock.now()
    time = type(now)(now - now % 1_000_000)
    content = MetadataBlock(
        system_time=time, prev_block_hash=state.head, sequence_number=state.size, event=SetInfo(description=text)
    )
    block = encode_block(content)
    return Proposal(dataset=dataset, blocks=[block], new_upper=to_millis(time) + 1), block


async def none(name: Multihash, size: int) -> AsyncGenerator[bytes, None]:
    raise AssertionError(f"{name} of {size} was not named")
    yield b""


async def test_a_writer_that_the_authority_names_appends_and_others_do_not(world: Any, worlds: Any) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        await alice.apply(worlds.ROOT)
        dataset = alice.dataset("cities")
        point, me = alice.parts.membership.commit_point, peer_of_did(bob.home.keys.node_key().did)
        proposal, block = noted(alice, "by bob")
        with pytest.raises(Refused, match="may not append"):
            await point.append(me, [proposal], none)
        with pytest.raises(Refused, match="may not append"):
            await point.shards(me, [dataset])
        request = wire.AuthorityDraftRequest(action="add-writer", key=bob.key)
        draft = await alice.api.authority.draft_authority("cities", request)
        await alice.api.authority.change_authority("cities", wire.AuthorityRequest(payload=draft.payload))
        (taken,) = await point.append(me, [proposal], none)
        assert isinstance(taken, Committed)
        assert await point.append(me, [proposal], none) == [Same(taken.shard)]
        assert list(await point.shards(me, [dataset])) == [taken.shard]
        with alice.home.database.read() as connection:
            tree, newest = Ledger(connection).chain(dataset).frontier, Ledger(connection).newest_head(dataset)
        assert newest is not None
        assert (tree.size, newest[0].size, newest[0].head) == (alice.size("cities"), alice.size("cities"), block.hash)
        assert (await alice.done(alice.api.verification.verify("cities", wire.VerifyRequest()))).ok
        again, _ = noted(alice, "by bob")
        with pytest.raises(Invalid, match="already in force"):
            await point.append(me, [again], none)

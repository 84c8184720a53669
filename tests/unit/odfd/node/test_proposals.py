"""Proposals of other nodes to a node's own datasets: who may, what is checked, stored and signed."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.odfd.node.test_shards import born, standing

from chain.codec.blocks import encode_block
from chain.data.arrow_schema import to_arrow
from chain.errors import Conflict, Environment, Fault, Invalid, NotFound, Refused
from chain.ids import DatasetId
from chain.instant import Instant, to_millis
from chain.model.block import Block, MetadataBlock
from chain.model.events import AddData, OffsetInterval, SetInfo
from chain.multihash import Multihash
from chain.state import ChainState, load_state
from chain.store.base import Head
from chain.store.database import open_database
from chain.store.objects import DiskObjects
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
from odfd.ingest.sharded_writes import written_by_shard
from odfd.trust.ledger.log import Ledger
from odfd.trust.signing.owner_commit import author_blocks
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


class Sharded:
    """Proposals of another writer for a collection of three shards, by city."""

    def __init__(self, node: Any, folder: Path) -> None:
        self.node, self.shards = node, node.home.shards_of(node.dataset("cities"))
        self.database = open_database(folder / "theirs.sqlite")
        self.objects = DiskObjects(folder / "theirs", self.database)
        self.fetched: list[Multihash] = []

    def states(self) -> list[ChainState]:
        return [load_state(self.node.home.chains.chain(each)) for each in self.shards]

    def transaction(
        self, *cities: str, turn: int = 0, watermarks: Sequence[Instant | None] = (None,) * 3
    ) -> list[Proposal]:
        """Rows divided as they belong; ``turn``: by so many shards further on, which is wrong."""
        states, now = self.states(), self.node.clock.now()
        time = type(now)(now - now % 1_000_000)
        schema = states[0].schema.schema
        arrow = to_arrow(schema).remove_metadata()
        moment = to_millis(time)
        values = {"offset": 0, "op": 0, "system_time": moment, "event_time": moment, "population": 1}
        rows = pa.Table.from_pylist([{**values, "city": city} for city in cities], arrow)
        nexts = [each.next_offset for each in states]
        made = written_by_shard(self.objects, [rows], schema, states[0].vocab, (("city",), nexts))
        found = []
        for place, (state, dataset) in enumerate(zip(states, self.shards, strict=True)):
            data = made[(place + turn) % 3]
            if data is not None and turn:
                data = msgspec.structs.replace(
                    data, offset_interval=OffsetInterval(start=nexts[place], end=nexts[place])
                )
            event = AddData(
                prev_offset=state.last_offset, new_data=data, new_watermark=time,
                new_source_state=state.source_state,
            )  # fmt: skip
            blocks = author_blocks(state, [event], time)
            found.append(Proposal(dataset=dataset, blocks=blocks, new_upper=moment + 1))
        return found

    async def fetch(self, name: Multihash, size: int) -> AsyncGenerator[bytes, None]:
        self.fetched.append(name)
        data = self.objects.read(name)
        assert len(data) == size
        yield data


@pytest.fixture
async def sharded(world: Any, worlds: Any, tmp_path: Path) -> AsyncGenerator[tuple[Any, Sharded, Any], None]:
    async with world.running("alice") as alice, world.running("bob") as bob:
        (item,) = (await alice.apply(born(worlds.ROOT, merge="{kind: Append}"))).items
        assert item.fault is None, item.fault
        world.write("alice", "d1.csv", "2024-01-01T00:00:00Z,Graz,1")
        await alice.pull("cities")
        request = wire.AuthorityDraftRequest(action="add-writer", key=bob.key)
        draft = await alice.api.authority.draft_authority("cities", request)
        await alice.api.authority.change_authority("cities", wire.AuthorityRequest(payload=draft.payload))
        theirs = Sharded(alice, tmp_path)
        yield alice, theirs, peer_of_did(bob.home.keys.node_key().did)
        theirs.database.close()


async def test_a_writer_of_the_collection_appends_to_all_its_shards_at_once(sharded: Any) -> None:
    alice, theirs, me = sharded
    point = alice.parts.membership.commit_point
    proposals = theirs.transaction("Linz", "Wels", "Enns", "Krems")
    taken = await point.append(me, proposals, theirs.fetch)
    assert all(isinstance(each, Committed) for each in taken)
    assert len(theirs.fetched) == len(set(theirs.fetched)) > 1
    assert await point.append(me, proposals, none) == [Same(each.shard) for each in taken]
    assert [each.head.hash for each in await point.shards(me, theirs.shards)] == [
        each.blocks[-1].hash for each in proposals
    ]
    rows = await standing(alice, "cities")
    assert sorted(row[1] for row in rows) == ["Enns", "Graz", "Krems", "Linz", "Wels"]
    for shard in theirs.shards:
        assert (await alice.done(alice.api.verification.verify(str(shard), wire.VerifyRequest()))).ok


async def test_what_would_set_shards_apart_is_refused_before_an_object_is_fetched(sharded: Any) -> None:
    alice, theirs, me = sharded
    point, before = alice.parts.membership.commit_point, theirs.states()
    proposals = theirs.transaction("Linz", "Wels", "Enns", "Krems")
    later = [*proposals[:2], msgspec.structs.replace(proposals[2], new_upper=proposals[2].new_upper + 1)]
    noted = [SetInfo(description="only here")]
    time = proposals[0].blocks[0].system_time
    apart = [msgspec.structs.replace(proposals[0], blocks=author_blocks(before[0], noted, time)), *proposals[1:]]
    for wrong, said in (
        (proposals[:2], "a proposal for 2 of 3 shards"), (later, "ends at different times"),
        (apart, "differs between shards"),
    ):  # fmt: skip
        with pytest.raises(Refused, match=said) as caught:
            await point.append(me, wrong, none)
        assert caught.value.rule == "shard-parted"
    assert [each.head for each in theirs.states()] == [each.head for each in before]


async def test_a_row_in_a_shard_that_is_not_its_own_is_refused(sharded: Any) -> None:
    alice, theirs, me = sharded
    before = [each.head for each in theirs.states()]
    with pytest.raises(Refused, match="has rows of another shard") as caught:
        await alice.parts.membership.commit_point.append(me, theirs.transaction("Linz", turn=1), theirs.fetch)
    assert caught.value.rule == "shard-rows"
    assert [each.head for each in theirs.states()] == before


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

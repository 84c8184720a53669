"""Blocks that are pulled: judged in whatever parts they come, and only the signed tree makes them the owner's."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain import instant
from chain.codec.blocks import encode_block
from chain.errors import Invalid
from chain.ids import DatasetId
from chain.instant import Instant
from chain.model.block import Block, MetadataBlock
from chain.model.events import AddData, DatasetKind, Seed
from chain.multihash import Multihash
from chain.state import ChainState
from chain.statements.authority import implicit
from chain.statements.statement import Epoch, HeadStatement
from chain.statements.statement import TreeHead as SignedTree
from chain.statements.tree import Frontier
from odfd.mirrors.epoch_switch import check_base
from odfd.mirrors.sinks import SignedFault, VerifiedChain
from odfd.mirrors.sync import _check_expected, _check_seed
from odfd.store.mirror_specs import MirrorSpec
from p2p.ports import PeerId, TreeRoot

DATASET = DatasetId.from_public_key(bytes(32))
PEER = PeerId("somebody")
SIZE = 60


def chain_of(size: int, back: int | None = None) -> list[Block]:
    """Watermarks that move; at ``back`` it goes back."""
    blocks: list[Block] = []
    for number in range(size):
        event: Seed | AddData = AddData(new_watermark=Instant(10**18 + number * 10**9 * (number != back)))
        if number == 0:
            event = Seed(dataset_id=DATASET, dataset_kind=DatasetKind.ROOT)
        head = blocks[-1].hash if blocks else None
        content = MetadataBlock(
            system_time=Instant(10**18 + number * 10**6), prev_block_hash=head, sequence_number=number, event=event
        )
        blocks.append(encode_block(content))
    return blocks


BLOCKS = chain_of(SIZE)


def signed(blocks: list[Block]) -> HeadStatement:
    return HeadStatement(
        dataset=DATASET,
        epoch=1,
        size=len(blocks),
        root_hash=Frontier().extend(block.hash.digest for block in blocks).root,
        authority=1,
        issued_at=instant.render(Instant(10**18)),
        expires_at=instant.render(Instant(2 * 10**18)),
        head=blocks[-1].hash,
    )


def fill(sink: VerifiedChain, blocks: list[Block], part: int) -> None:
    while sink.size < len(blocks):
        sink.append(PEER, sink.size, [block.raw for block in blocks[sink.size : sink.size + part]])


@given(st.integers(0, SIZE - 1), st.integers(1, SIZE))
def test_the_parts_and_the_start_do_not_matter(start: int, part: int) -> None:
    state, frontier = ChainState.EMPTY, Frontier()
    for block in BLOCKS[:start]:
        state, frontier = state.advance(block), frontier.append(block.hash.digest)
    sink = VerifiedChain(state, frontier, signed(BLOCKS))
    fill(sink, BLOCKS, part)
    sink.finish()
    assert [(each.raw, each.hash, each.sequence_number) for each in sink.blocks] == [
        (each.raw, each.hash, each.sequence_number) for each in BLOCKS[start:]
    ]
    assert sink.frontier.root == signed(BLOCKS).root_hash


@pytest.mark.parametrize("part", [1, 7, SIZE])
def test_a_block_that_breaks_a_rule_is_named_and_its_part_is_not_kept(part: int) -> None:
    wrong = chain_of(SIZE, back=40)
    sink = VerifiedChain(ChainState.EMPTY, Frontier(), signed(wrong))
    with pytest.raises(Invalid, match="the watermark goes back") as caught:
        fill(sink, wrong, part)
    assert (caught.value.rule, caught.value.place) == ("watermark-monotonic", "block #40")
    kept = 40 // part * part
    assert (sink.size, len(sink.blocks)) == (kept, kept)
    assert sink.frontier == Frontier().extend(block.hash.digest for block in wrong[:kept])


@pytest.mark.parametrize("part", [1, 7, SIZE])
@pytest.mark.parametrize("back", [40, SIZE - 1])
def test_a_block_that_its_owner_signed_is_no_fault_of_who_gave_it(part: int, back: int) -> None:
    """The last one is proven by the head itself, others by who proves the tree up to them."""
    wrong, asked = chain_of(SIZE, back=back), list[TreeRoot]()

    def proves(tree: TreeRoot) -> bool:
        asked.append(tree)
        return tree.root == Frontier().extend(block.hash.digest for block in wrong[: tree.size]).root

    sink = VerifiedChain(ChainState.EMPTY, Frontier(), signed(wrong), proves=proves)
    with pytest.raises(SignedFault) as caught:
        fill(sink, wrong, part)
    assert (caught.value.fault.rule, caught.value.fault.place) == ("watermark-monotonic", f"block #{back}")
    assert [tree.size for tree in asked] == [back + 1] * (back + 1 < SIZE)
    sink = VerifiedChain(ChainState.EMPTY, Frontier(), signed(BLOCKS), proves=lambda _: False)
    with pytest.raises(Invalid, match="the watermark goes back"):
        fill(sink, wrong, part)


def test_bytes_that_are_no_block_are_their_owners_fault_where_they_are_signed() -> None:
    leaves = [block.hash.digest for block in BLOCKS[:5]] + [Multihash.sha3_256(b"no block").digest]
    head = msgspec.structs.replace(signed(BLOCKS), size=6, root_hash=Frontier().extend(leaves).root)
    sink = VerifiedChain(ChainState.EMPTY, Frontier(), head)
    with pytest.raises(SignedFault):
        sink.append(PEER, 0, [*(block.raw for block in BLOCKS[:5]), b"no block"])
    sink = VerifiedChain(ChainState.EMPTY, Frontier(), head)
    with pytest.raises(Invalid):
        sink.append(PEER, 0, [*(block.raw for block in BLOCKS[:5]), b"no  block"])


def test_good_blocks_that_nobody_signed_are_forgotten() -> None:
    sink = VerifiedChain(ChainState.EMPTY, Frontier(), signed(chain_of(SIZE + 1)), until=SIZE)
    fill(sink, BLOCKS, SIZE)
    sink.finish()
    assert sink.size == SIZE
    sink = VerifiedChain(ChainState.EMPTY, Frontier(), signed(chain_of(SIZE, back=SIZE - 1)))
    fill(sink, BLOCKS, SIZE)
    with pytest.raises(Invalid) as caught:
        sink.finish()
    assert caught.value.rule == "trust.tree"
    assert (sink.size, sink.blocks, sink.frontier) == (0, [], Frontier())


@pytest.mark.parametrize("part", [1, SIZE])
def test_the_right_blocks_under_a_false_root_are_not_the_signed_ones(part: int) -> None:
    """A publisher that signs another tree over its own last block could prove other histories by it later."""
    lied = msgspec.structs.replace(signed(BLOCKS), root_hash=signed(BLOCKS[:-1]).root_hash)
    sink = VerifiedChain(ChainState.EMPTY, Frontier(), lied)
    fill(sink, BLOCKS, part)
    with pytest.raises(Invalid) as caught:
        sink.finish()
    assert caught.value.rule == "trust.tree"
    assert (sink.size, sink.blocks, sink.frontier) == (0, [], Frontier())


def filled() -> VerifiedChain:
    sink = VerifiedChain(ChainState.EMPTY, Frontier(), signed(BLOCKS))
    fill(sink, BLOCKS, SIZE)
    sink.finish()
    return sink


def test_a_chain_whose_seed_is_not_that_of_its_authority_or_that_lacks_the_expected_block_is_refused() -> None:
    """One key may sign two chains; each is whole by itself, and only one is the one that was meant."""
    sink = filled()
    rights = msgspec.structs.replace(implicit(DATASET), seed=BLOCKS[0].hash)
    _check_seed(sink, rights)
    with pytest.raises(Invalid) as caught:
        _check_seed(sink, msgspec.structs.replace(rights, seed=BLOCKS[1].hash))
    assert caught.value.rule == "graft"
    spec = MirrorSpec(dataset=str(DATASET), name="theirs", expect=str(BLOCKS[7].hash))
    _check_expected(spec, sink)
    with pytest.raises(Invalid) as caught:
        _check_expected(msgspec.structs.replace(spec, expect=str(chain_of(SIZE, back=7)[7].hash)), sink)
    assert caught.value.rule == "mirror-expect"


def test_blocks_that_are_not_those_on_which_their_epoch_was_opened_are_refused() -> None:
    """Whatever the head says: the roots signed how the epoch begins, and a writer alone cannot change that."""
    sink = filled()
    base = SignedTree(size=9, root_hash=Frontier().extend(block.hash.digest for block in BLOCKS[:9]).root)
    opened = Epoch(number=1, reason="rotation", base=base, last=base)
    for root, size, wrong in ((base.root_hash, 9, False), (bytes(32), 9, True), (base.root_hash, 10, True)):
        epoch = msgspec.structs.replace(opened, base=SignedTree(size=size, root_hash=root))
        rights = msgspec.structs.replace(implicit(DATASET), epochs=(epoch,))
        if wrong:
            with pytest.raises(Invalid) as caught:
                check_base(Frontier(), sink.blocks, signed(BLOCKS), rights)
            assert caught.value.rule == "trust.epoch-base"
        else:
            check_base(Frontier(), sink.blocks, signed(BLOCKS), rights)

"""Lays out the messages of ``/odf/1/chain``, which fetch ranges of raw blocks.

Bodies of frames, numbers in network order::

    range   01  u32 request  34 did  u64 start  u32 max_blocks  u32 max_bytes
    blocks  81  u32 request  u64 size  u64 start  u32 count  count x u32 length  the blocks, end to end
    refusal 7f  u32 request  u8 reason  text

``size`` is the number of blocks of the chain that the answering node serves; a request with ``max_bytes = 0`` asks for
that number alone. An answer has at least one block if ``start < size`` and bytes were asked for, so a fetch always
makes progress. Answers may overtake each other; ``request`` is the asker's number, repeated in the answer. Blocks are
only bytes here; the receiver verifies them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Annotated, Final, TypeAlias

import msgspec

from chain.errors import Invalid
from p2p.wire.layout import U32, U64, Blobs, Did, MessageKinds, MessageLayout, u32
from p2p.wire.limits import MAX_BLOCK, MAX_RANGE_BLOCKS, MAX_RANGE_BYTES
from p2p.wire.refusal import REFUSAL, PeerRefusal

PROTOCOL: Final = "/odf/1/chain"


class BlockRange(msgspec.Struct, frozen=True, kw_only=True):
    """A request for blocks from ``start`` on:
    at most ``max_blocks``, and at most ``max_bytes`` unless it is one block."""

    request: U32
    dataset: Did
    start: U64
    max_blocks: Annotated[int, u32(MAX_RANGE_BLOCKS)] = MAX_RANGE_BLOCKS
    max_bytes: Annotated[int, u32(MAX_RANGE_BYTES)] = MAX_RANGE_BYTES


class Blocks(msgspec.Struct, frozen=True, kw_only=True):
    """An answer: raw blocks ``start``, ``start + 1``, … of a chain of which the sender serves ``size`` blocks."""

    request: U32
    size: U64
    start: U64
    blocks: Annotated[tuple[bytes, ...], Blobs(u32(MAX_RANGE_BLOCKS), MAX_BLOCK, 1)]


ChainReply: TypeAlias = Blocks | PeerRefusal


_RANGE: Final = MessageLayout("chain-request", 0x01, BlockRange)
encode_range, decode_range = _RANGE.encode, _RANGE.decode


def _beyond_end(answer: Blocks) -> str | None:
    # An answer that is empty may start anywhere: who asks beyond the end is told the size.
    return "blocks beyond the end" if answer.start + len(answer.blocks) > max(answer.size, answer.start) else None


_BLOCKS: Final = MessageLayout("chain-reply", 0x81, Blocks, _beyond_end)
encode_blocks = _BLOCKS.encode
decode_chain_reply = MessageKinds[ChainReply](_BLOCKS, REFUSAL).decode


def fit(blocks: Sequence[bytes], max_blocks: int, max_bytes: int) -> tuple[bytes, ...]:
    """Returns the first of ``blocks`` that fit into an answer;
    at least one, even over ``max_bytes``, unless that is 0."""
    kept = blocks[: min(max_blocks, MAX_RANGE_BLOCKS)]
    within = sum(1 for end in accumulate(map(len, kept)) if end <= max_bytes)
    return tuple(kept[: max(within, 1 if max_bytes else 0)])


def check_answer(ask: BlockRange, answer: Blocks) -> None:
    """Raises Invalid unless ``answer`` is one that ``ask`` allows."""
    total = sum(map(len, answer.blocks))
    if answer.start != ask.start or len(answer.blocks) > ask.max_blocks:
        raise Invalid(
            f"asked for blocks from #{ask.start}, got {len(answer.blocks)} from #{answer.start}", rule="chain-range"
        )
    if total > ask.max_bytes and len(answer.blocks) != 1:
        raise Invalid(f"asked for {ask.max_bytes} bytes of blocks, got {total}", rule="chain-range")
    if ask.max_bytes and ask.max_blocks and not answer.blocks and answer.start < answer.size:
        raise Invalid(f"no block of the {answer.size} that there are, from #{answer.start} on", rule="chain-range")

"""Encodes and decodes the messages of ``/odf/1/chain``, which fetch ranges of raw blocks.

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

import struct
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Final, TypeAlias

import msgspec

from chain.errors import Invalid
from chain.ids import DatasetId
from chain.wording import plural
from p2p.wire import refusal
from p2p.wire.limits import MAX_BLOCK, MAX_RANGE_BLOCKS, MAX_RANGE_BYTES, MAX_REPLY
from p2p.wire.refusal import Refusal

PROTOCOL: Final = "/odf/1/chain"
_RANGE: Final = struct.Struct(">BI34sQII")
_BLOCKS: Final = struct.Struct(">BIQQI")
RANGE_KIND: Final = 0x01
BLOCKS_KIND: Final = 0x81


class BlockRange(msgspec.Struct, frozen=True, kw_only=True):
    """A request for blocks from ``start`` on:
    at most ``max_blocks``, and at most ``max_bytes`` unless it is one block."""

    request: int
    dataset: DatasetId
    start: int
    max_blocks: int = MAX_RANGE_BLOCKS
    max_bytes: int = MAX_RANGE_BYTES


class Blocks(msgspec.Struct, frozen=True, kw_only=True):
    """An answer: raw blocks ``start``, ``start + 1``, … of a chain of which the sender serves ``size`` blocks."""

    request: int
    size: int
    start: int
    blocks: tuple[bytes, ...]


ChainReply: TypeAlias = Blocks | Refusal


def encode_range(ask: BlockRange) -> bytes:
    return _RANGE.pack(RANGE_KIND, ask.request, ask.dataset, ask.start, ask.max_blocks, ask.max_bytes)


def decode_range(body: bytes) -> BlockRange:
    """Decodes a request. Raises Invalid."""
    if len(body) != _RANGE.size or body[0] != RANGE_KIND:
        raise Invalid(f"not a range request: {body[:8].hex()}…", rule="chain-request", hint=f"{_RANGE.size} bytes, 01…")
    _, request, did, start, max_blocks, max_bytes = _RANGE.unpack(body)
    if max_blocks > MAX_RANGE_BLOCKS or max_bytes > MAX_RANGE_BYTES:
        raise Invalid(
            f"a request for {plural(max_blocks, 'block')}, {max_bytes} bytes",
            rule="chain-range",
            hint=f"at most {MAX_RANGE_BLOCKS} blocks and {MAX_RANGE_BYTES} bytes at a time",
        )
    return BlockRange(
        request=request, dataset=DatasetId.from_bytes(did), start=start, max_blocks=max_blocks, max_bytes=max_bytes
    )


def fit(blocks: Sequence[bytes], max_blocks: int, max_bytes: int) -> tuple[bytes, ...]:
    """Returns the first of ``blocks`` that fit into an answer;
    at least one, even over ``max_bytes``, unless that is 0."""
    kept = blocks[: min(max_blocks, MAX_RANGE_BLOCKS)]
    within = sum(1 for end in accumulate(map(len, kept)) if end <= max_bytes)
    return tuple(kept[: max(within, 1 if max_bytes else 0)])


def encode_blocks(answer: Blocks) -> bytes:
    count = len(answer.blocks)
    head = _BLOCKS.pack(BLOCKS_KIND, answer.request, answer.size, answer.start, count)
    return b"".join([head, struct.pack(f">{count}I", *map(len, answer.blocks)), *answer.blocks])


def decode_chain_reply(body: bytes) -> ChainReply:
    """Decodes an answer or a refusal. Raises Invalid."""
    if body[:1] == bytes([refusal.KIND]):
        return refusal.decode_refusal(body)
    if not _BLOCKS.size <= len(body) <= MAX_REPLY or body[0] != BLOCKS_KIND:
        raise Invalid(f"not an answer of the chain protocol: {body[:8].hex()}…", rule="chain-reply")
    _, request, size, start, count = _BLOCKS.unpack_from(body)
    table_end = _BLOCKS.size + 4 * count
    if count > MAX_RANGE_BLOCKS or table_end > len(body) or start + count > max(size, start):
        raise Invalid(f"an answer of {plural(count, 'block')} from #{start} of {size}", rule="chain-reply")
    lengths = struct.unpack_from(f">{count}I", body, _BLOCKS.size)
    if table_end + sum(lengths) != len(body) or (count and not 0 < min(lengths) <= max(lengths) <= MAX_BLOCK):
        raise Invalid(
            f"the blocks' lengths do not fit the {len(body) - table_end} bytes that came",
            rule="chain-reply",
            hint=f"each block has 1 to {MAX_BLOCK} bytes and together they fill the frame",
        )
    bounds = pairwise(accumulate(lengths, initial=table_end))
    return Blocks(request=request, size=size, start=start, blocks=tuple([body[at:end] for at, end in bounds]))


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

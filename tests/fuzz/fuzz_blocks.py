"""Mutated blocks, as many as one likes: ``python tests/fuzz/fuzz_blocks.py 1000000 [SEED]``.

Every mutant decodes to a value or is Invalid, at a cost in proportion to its size. One that decodes: its place is read
the same without its event, what its shape lifts is what the codec decodes, and a known event encodes to bytes that
decode to the same value. Mutants that decode become parents of others, so the walk goes deep and not only wide.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from chain.codec.blocks import content_of, decode_block, encode_block, read_link
from chain.codec.shape import shape_of
from chain.codec.stamp import unpack
from chain.errors import Invalid
from chain.model.block import Block, UnknownEvent

GOLDEN = Path(__file__).parents[1] / "golden" / "kamu"
PARENTS = 400
HOSTILE = (0, 1, 3, 4, 0x7F, 0x80, 0xFF, 0xFFFF, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFC, 0xFFFF_FFFF)
PER_BYTE = 20e-6
"""Seconds of our own time that a byte may cost, and a thousand bytes for good measure."""


def corpus() -> list[bytes]:
    """Blocks as the reference wrote them."""
    return [file.read_bytes() for file in sorted(GOLDEN.glob("*/blocks/*"))]


def fuzz(parents: Sequence[bytes], count: int, seed: int) -> Counter[str]:
    """How often each answer was given. Raises AssertionError, or what the code let through, at the first wrong one."""
    lot = random.Random(seed)
    grown = list(parents)
    answers: Counter[str] = Counter()
    for _ in range(count):
        raw = mutated(lot, lot.choice(grown), lot.choice(grown))
        begin = time.thread_time()
        try:
            block = decode_block(raw)
        except Invalid as error:
            answers[error.rule] += 1
            block = None
        assert not answers[""], f"an Invalid without a rule: {raw.hex()}"
        spent = time.thread_time() - begin
        assert spent < PER_BYTE * (len(raw) + 1000), f"{spent:.3f} s for {len(raw)} bytes: {raw.hex()}"
        if block is not None:
            answers["decoded"] += 1
            check(block)
            if len(grown) < PARENTS:
                grown.append(raw)
            elif lot.random() < 0.05:
                grown[lot.randrange(len(parents), PARENTS)] = raw
    return answers


def check(block: Block) -> None:
    link = read_link(block.raw)
    assert (link.hash, link.prev_block_hash, link.sequence_number) == (
        block.hash,
        block.prev_block_hash,
        block.sequence_number,
    )
    if (shape := shape_of(block.raw)) is not None:
        values, same = shape.lift([block.raw] * 2)
        assert same.all()
        assert unpack(values["system_time"][1].tobytes(), 0) == block.system_time
    if not isinstance(block.event, UnknownEvent):
        try:
            again = encode_block(content_of(block), block.version)
        except Invalid:
            return
        assert decode_block(again.raw).event == block.event


def mutated(lot: random.Random, raw: bytes, other: bytes) -> bytes:
    out = bytearray(raw)
    for _ in range(lot.randint(1, 4)):
        place = lot.randrange(len(out))
        way = lot.randrange(6)
        if way == 0:
            out[place] = lot.randrange(256)
        elif way == 1:
            out[place] ^= 1 << lot.randrange(8)
        elif way == 2:
            del out[place : place + lot.randrange(9)]
        elif way == 3:
            out[place:place] = out[place : place + lot.randrange(9)]
        elif way == 4:
            out[place & ~3 : (place & ~3) + 4] = lot.choice(HOSTILE).to_bytes(4, "little")
        else:
            start = lot.randrange(len(other))
            piece = other[start : start + lot.randrange(64)]
            out[place : place + len(piece)] = piece
        out = out or bytearray(b"\0")
    return bytes(out)


def main(arguments: Sequence[str]) -> int:
    count, seed = (
        int(arguments[0]),
        int(arguments[1]) if len(arguments) > 1 else random.SystemRandom().randrange(1 << 32),
    )
    done: Counter[str] = Counter()
    begin = time.monotonic()
    step = 10_000
    for start in range(0, count, step):
        done += fuzz(corpus(), min(step, count - start), seed + start)
        sys.stderr.write(
            f"\r{sum(done.values()):,} mutants, {done['decoded']:,} decoded, {time.monotonic() - begin:.0f} s"
        )
    sys.stdout.write(f"\nseed {seed}\n" + "".join(f"{number:>10,} {rule}\n" for rule, number in done.most_common()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

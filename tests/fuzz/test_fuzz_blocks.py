"""Mutated blocks, as many as one likes: ``PYTHONPATH=tests python tests/fuzz/test_fuzz_blocks.py 1000000 [SEED]``.

Every mutant decodes to a value or is Invalid; what it costs by the byte is told. One that decodes: its place is read
the same without its event, what its shape lifts is what the codec decodes, and a known event encodes to bytes that
decode to the same value.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from chain.codec.blocks import content_of, decode_block, encode_block, read_link
from chain.codec.shape import shape_of
from chain.codec.timestamp import unpack
from chain.errors import Invalid
from chain.model.block import Block, UnknownEvent
from worlds.mutation import walk

GOLDEN = Path(__file__).parents[1] / "golden" / "kamu"
MUTANTS = int(os.environ.get("ODFD_FUZZ", "7000"))
SPARED = 1000
"""Bytes that cost nothing, for what every call costs; beside them the dearest mutant is the dearest by the byte."""


class Tally:
    """What came of many mutants."""

    def __init__(self) -> None:
        self.answers: Counter[str] = Counter()
        """How often each answer was given: a rule, or ``decoded``."""
        self.known = 0
        """Of those decoded, blocks of events that we know whole."""
        self.spent = self.size = 0.0
        """Seconds of our own time, and bytes."""
        self.dearest = 0.0
        """Seconds for each byte of the mutant that cost most by the byte."""

    def told(self) -> str:
        usual = self.spent / (self.size or 1)
        lines = [f"{number:>10,} {rule}" for rule, number in self.answers.most_common()]
        known = f"{self.known:,} of those decoded are of events known whole"
        dearest = f"the dearest mutant {1e9 * self.dearest:.0f}, {self.dearest / usual:.1f} times that"
        return "\n".join([*lines, f"{known}; {1e9 * usual:.0f} ns a byte, {dearest}"])


def corpus() -> list[bytes]:
    """Blocks as the reference wrote them."""
    return [file.read_bytes() for file in sorted(GOLDEN.glob("*/blocks/*"))]


def fuzz(parents: Sequence[bytes], count: int, seed: int, tally: Tally) -> None:
    """Adds to the tally. Raises AssertionError, or what the code let through, at the first wrong answer."""
    tally.answers["decoded"] += walk(parents, count, seed, lambda raw: decodes(raw, tally))


def decodes(raw: bytes, tally: Tally) -> bool:
    begin = time.thread_time()
    try:
        block = decode_block(raw)
    except Invalid as error:
        tally.answers[error.rule] += 1
        block = None
    assert "" not in tally.answers, f"an Invalid without a rule: {raw.hex()}"
    spent = time.thread_time() - begin
    tally.spent, tally.size = tally.spent + spent, tally.size + len(raw) + SPARED
    tally.dearest = max(tally.dearest, spent / (len(raw) + SPARED))
    if block is None:
        return False
    tally.known += not isinstance(block.event, UnknownEvent) and not block.unknown_fields
    check(block)
    return True


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


@pytest.mark.slow
def test_mutated_blocks() -> None:
    tally = Tally()
    fuzz(corpus(), MUTANTS, seed=1, tally=tally)
    assert tally.answers.total() == MUTANTS
    assert tally.answers["decoded"] > MUTANTS // 20
    assert tally.known > MUTANTS // 40
    assert len(tally.answers) > 8


def main(arguments: Sequence[str]) -> int:
    count, seed = (
        int(arguments[0]),
        int(arguments[1]) if len(arguments) > 1 else random.SystemRandom().randrange(1 << 32),
    )
    tally = Tally()
    begin = time.monotonic()
    step = 10_000
    for start in range(0, count, step):
        fuzz(corpus(), min(step, count - start), seed + start, tally)
        decoded = tally.answers["decoded"]
        sys.stderr.write(f"\r{tally.answers.total():,} mutants, {decoded:,} decoded, {time.monotonic() - begin:.0f} s")
    sys.stdout.write(f"\nseed {seed}\n{tally.told()}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

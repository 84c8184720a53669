"""Random and changed bytes make no decoder do more than refuse them: blocks, gossip, and what peers say."""

from __future__ import annotations

import os
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from chain.codec.blocks import content_of, decode_block, encode_block, read_link, read_time
from chain.codec.shape import shape_of
from chain.codec.timestamp import unpack
from chain.errors import Invalid
from chain.model.block import Block, UnknownEvent
from p2p.budget.work import Party
from p2p.host.host import open_host
from p2p.host.pubsub import ID, BoundedPubsub, StreamEOF, open_gossip, rpc_pb2
from p2p.identity import peer_of_seed
from p2p.ports import GossipVerdict, Judgement, PeerId
from worlds.eventually import PATIENCE
from worlds.mutation import mutated, walk
from worlds.peer_bytes import FAULTS, TARGETS, Target

# Mutants of valid messages for every decoder of a peer's bytes: a value, or a fault that names its rule.
# ``ODF_FUZZ`` says how many mutants each decoder is shown, ``ODF_FUZZ_SEED`` which.


MESSAGES = int(os.environ.get("ODF_FUZZ", "350"))
SEED = int(os.environ.get("ODF_FUZZ_SEED", "1"))


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_a_peers_bytes_are_a_value_or_a_fault(target: Target, tmp_path: Path) -> None:
    """Attack T-BYTES-01: arbitrary bytes, for each decoder of messages from peers and IPFS daemons.

    Defence: a value or a fault with its rule; each decoder must have mutants of valid messages, which are tried in each
    run of the tests.
    """
    rules = set()

    with target.open(tmp_path) as decode:

        def decodes(raw: bytes) -> bool:
            try:
                decode(raw)
            except FAULTS as fault:
                rules.add(fault.rule)
                return False
            except Exception as error:
                raise AssertionError(f"{type(error).__name__} for {raw[:500].hex()} ({len(raw)} bytes)") from error
            return True

        assert sum(map(decodes, target.parents)), f"no valid message to begin from: {rules}"
        walk(target.parents, MESSAGES // target.dear, SEED, decodes)
    assert rules, "no mutant was refused: nothing is tried here"
    assert "" not in rules, "a fault that names no rule"


# Mutants of gossip frames, to a host that is really open: each is taken, or ends its stream, and never anything else.
# The frames are protobuf read by the library's own parser, and what follows from them runs in its router; so the
# whole of it is fed, as from a peer's stream. ``ODF_FUZZ`` and ``ODF_FUZZ_SEED`` as above.


TOPIC = "/odf/1/fuzz/heads"
STRANGER = ID.from_base58(peer_of_seed(b"s" * 32))


class OneFrame:
    """A peer's gossip stream with these bytes on it."""

    def __init__(self, frame: bytes) -> None:
        self._rest = memoryview(frame)
        self.muxed_conn = SimpleNamespace(peer_id=STRANGER, party=Party(1, PeerId(str(STRANGER)), ""))
        self.was_reset = False

    async def read(self, count: int) -> bytes:
        await trio.lowlevel.checkpoint()
        if not self._rest:
            raise StreamEOF
        part, self._rest = bytes(self._rest[:count]), self._rest[count:]
        return part

    async def reset(self) -> None:
        self.was_reset = True


def framed(rpc: Any) -> bytes:
    raw = rpc.SerializeToString()
    length, prefix = len(raw), bytearray()
    while length > 0x7F:
        prefix.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes([*prefix, length]) + raw


def frames() -> list[bytes]:
    """One of each kind."""
    subscribing, telling, controlling = rpc_pb2.RPC(), rpc_pb2.RPC(), rpc_pb2.RPC()
    subscribing.subscriptions.add(subscribe=True, topicid=TOPIC)
    telling.publish.add(from_id=STRANGER.to_bytes(), data=b"{}", seqno=bytes(8), topicIDs=[TOPIC], signature=bytes(64))
    control = controlling.control
    control.ihave.add(topicID=TOPIC, messageIDs=[b"one", b"two"])
    control.iwant.add(messageIDs=[b"one"])
    control.graft.add(topicID=TOPIC)
    control.prune.add(topicID=TOPIC, backoff=60)
    control.idontwant.add(messageIDs=[b"one"])
    return [framed(rpc) for rpc in (subscribing, telling, controlling)]


@pytest.mark.slow
async def test_gossip_frames_are_taken_or_end_their_stream() -> None:
    """Attack T-PEER-02: gossip frames that are almost valid.

    Defence: mutants of each kind of frame are accepted or end their stream.
    """
    judged: list[bytes] = []

    async def judge(_topic: str, _sender: PeerId, data: bytes) -> GossipVerdict:
        await trio.lowlevel.checkpoint()
        judged.append(data)
        return GossipVerdict(Judgement.IGNORE)

    lot, whole, resets = Random(SEED), frames(), 0
    async with open_host(b"h" * 32, []) as host, open_gossip(host, [TOPIC], judge) as gossip:
        pubsub = gossip._pubsub
        assert isinstance(pubsub, BoundedPubsub)
        pubsub._work.chosen = frozenset([PeerId(str(STRANGER))])
        for _ in range(MESSAGES):
            stream = OneFrame(mutated(lot, lot.choice(whole), lot.choice(whole)) + lot.choice([b"", *whole]))
            await pubsub.continuously_read_stream(stream)
            resets += stream.was_reset
        assert len(pubsub.peer_topics) <= 1, "topics that nobody joined are kept"
        with trio.fail_after(PATIENCE):
            await gossip.publish(TOPIC, b"still here")
    assert 0 < resets < MESSAGES
    assert not judged, "nobody signed any of this"


# Mutated blocks, as many as one likes: ``PYTHONPATH=tests python tests/fuzz/test_decoders.py 1000000 [SEED]``.
# Every mutant decodes to a value or is Invalid; what it costs by the byte is told. One that decodes: its place is
# read the same without its event, what its shape lifts is what the codec decodes, and a known event encodes to bytes
# that decode to the same value.


GOLDEN = Path(__file__).parents[1] / "golden" / "kamu"
MUTANTS = int(os.environ.get("ODF_FUZZ", "7000"))
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
    assert read_time(block.raw) == block.system_time
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
    """Attack T-BYTES-01: blocks that expand when they are read.

    Defence: offsets are checked before they are followed and counted each time, 64 tables deep; 7,000 mutants in each
    run of the tests, 20,000 each night.
    """
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

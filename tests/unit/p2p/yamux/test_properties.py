"""What holds for every conversation: splitting does not matter, bytes arrive once and in order, memory is bounded."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from p2p.errors import Misbehaviour
from p2p.yamux import frames
from p2p.yamux.frames import DATA, HEADER_SIZE, INITIAL_WINDOW, YamuxLimits, pack
from p2p.yamux.session import StreamLimit, YamuxSession
from p2p.yamux.stream import Event, Readable, StreamOpened, WasReset
from worlds.depth import share

SMALL = YamuxLimits(
    max_inbound=4, max_outbound=4, backlog=3, max_window=INITIAL_WINDOW * 2, max_buffered=INITIAL_WINDOW * 3
)

frame = st.one_of(
    st.builds(
        lambda flags, stream, body: pack(DATA, flags, stream, len(body)) + body,
        st.integers(0, 15),
        st.integers(1, 12),
        st.binary(max_size=40),
    ),
    st.builds(pack, st.integers(0, 3), st.integers(0, 15), st.integers(0, 12), st.integers(0, 300_000)),
)
likely = st.one_of(
    st.builds(lambda s: pack(frames.WINDOW_UPDATE, frames.SYN, s, 0), st.integers(0, 5).map(lambda n: 2 * n + 1)),
    st.builds(
        lambda s, b: pack(DATA, 0, s, len(b)) + b, st.integers(0, 5).map(lambda n: 2 * n + 1), st.binary(max_size=300)
    ),
    st.builds(
        lambda s, f: pack(frames.WINDOW_UPDATE, f, s, 0),
        st.integers(0, 5).map(lambda n: 2 * n + 1),
        st.sampled_from([frames.FIN, frames.RST]),
    ),
    st.builds(lambda v: pack(frames.PING, frames.SYN, 0, v), st.integers(0, 0xFFFF_FFFF)),
)


def pieces(raw: bytes, cuts: list[int]) -> Iterator[bytes]:
    edges = [0, *sorted(cut % (len(raw) + 1) for cut in cuts), len(raw)]
    for start, end in itertools.pairwise(edges):
        yield raw[start:end]


def story(parts: Iterator[bytes]) -> tuple[list[Event], bytes, dict[int, bytes], str]:
    """What a server makes of the bytes: events (neighbours that are equal count once), answers, contents, its end."""
    session = YamuxSession(initiator=False, limits=SMALL, now=0.0)
    events: list[Event] = []
    broken = ""
    try:
        for part in parts:
            for event in session.receive(part, 0.0):
                if isinstance(event, StreamOpened) or event not in events[-1:]:
                    events.append(event)
    except Misbehaviour as error:
        broken = error.rule
        events = []
    contents = {
        number: b"".join(iter(partial(stream.inbox.take, 1 << 20), b"")) for number, stream in session._streams.items()
    }
    return events, b"".join(session.outgoing(1 << 30, 0.0).messages), contents, broken


@pytest.mark.slow
@given(
    st.lists(st.one_of(likely, likely, frame), max_size=30).map(b"".join),
    st.lists(st.integers(0, 1 << 20), max_size=20),
)
def test_how_the_bytes_are_split_does_not_matter(raw: bytes, cuts: list[int]) -> None:
    whole = story(iter([raw]))
    assert story(pieces(raw, cuts)) == whole
    assert story(raw[i : i + 1] for i in range(len(raw))) == whole


@given(st.lists(st.one_of(likely, frame, st.binary(max_size=64)), max_size=60))
def test_hostile_bytes_are_events_or_a_violation_and_memory_is_bounded(parts: list[bytes]) -> None:
    session = YamuxSession(initiator=False, limits=SMALL, now=0.0)
    try:
        for part in parts:
            session.receive(part, 0.0)
            assert session.open_streams <= SMALL.max_inbound
            assert session.buffered <= SMALL.max_buffered
            assert session.buffered == sum(len(one.inbox) for one in session._streams.values())
    except Misbehaviour as error:
        assert error.rule.startswith("yamux-")  # noqa: PT017 - a violation is one of two right answers


class Conversation(RuleBasedStateMachine):
    """Two sessions, a lossless pipe each way that delivers in pieces of any size, and a model of what streams hold."""

    @initialize(seed=st.integers(0, 1 << 32))
    def connect(self, seed: int) -> None:
        limits = YamuxLimits(max_inbound=4, max_outbound=4, backlog=4, extra_credit=1 << 19, max_message=2000)
        self.ends = [YamuxSession(initiator=first, limits=limits, now=0.0) for first in (True, False)]
        self.wires = [bytearray(), bytearray()]
        self.random = random.Random(seed)
        self.sent: dict[tuple[int, int], bytearray] = {}
        self.got: dict[tuple[int, int], bytearray] = {}
        self.known: list[set[int]] = [set(), set()]
        self.finished: set[tuple[int, int]] = set()
        self.pending: dict[tuple[int, int], memoryview] = {}
        self.cut: set[int] = set()
        for end in (0, 1):
            self.open(end)

    def _know(self, end: int, stream: int) -> None:
        self.known[end].add(stream)
        self.sent.setdefault((end, stream), bytearray())
        self.got.setdefault((end, stream), bytearray())

    def _pick(self, end: int, choice: int) -> int | None:
        open_here = sorted(self.known[end] - self.cut)
        return open_here[choice % len(open_here)] if open_here else None

    @rule(end=st.integers(0, 1))
    def open(self, end: int) -> None:
        try:
            self._know(end, self.ends[end].open())
        except StreamLimit:
            assert not self.ends[end].can_open

    @rule(end=st.integers(0, 1), choice=st.integers(0, 9), size=st.sampled_from([1, 5000, 200_000, 300_000]))
    def write(self, end: int, choice: int, size: int) -> None:
        stream = self._pick(end, choice)
        if stream is None or (end, stream) in self.finished or (end, stream) in self.pending:
            return
        body = self.random.randbytes(size)
        self.pending[end, stream] = memoryview(body)
        self.sent[end, stream] += body
        self.ends[end].write(stream, memoryview(body), 0.0)

    @rule(end=st.integers(0, 1), limit=st.sampled_from([1, 3000, 100_000, 1 << 20]))
    def send(self, end: int, limit: int) -> None:
        out = self.ends[end].outgoing(limit, 0.0)
        assert all(0 < len(message) <= 2000 for message in out.messages)
        for stream in out.drained:
            del self.pending[end, stream]
        self.wires[end] += b"".join(out.messages)

    @rule(end=st.integers(0, 1))
    def carry(self, end: int) -> None:
        """A burst: what is there to send arrives and is read."""
        self.send(end, 1 << 20)
        self.deliver(end, len(self.wires[end]))
        for choice in range(len(self.known[1 - end])):
            self.read(1 - end, choice, 1 << 20)

    @rule(end=st.integers(0, 1), size=st.integers(1, 100_000))
    def deliver(self, end: int, size: int) -> None:
        piece = bytes(self.wires[end][:size])
        del self.wires[end][:size]
        other = 1 - end
        for event in self.ends[other].receive(piece, 0.0):
            if isinstance(event, WasReset):
                self._cut(event.stream)
        while (stream := self.ends[other].accept()) is not None:
            self._know(other, stream)

    def _cut(self, stream: int) -> None:
        self.cut.add(stream)
        for end in (0, 1):
            self.pending.pop((end, stream), None)
            self.ends[end].reset(stream)

    @rule(end=st.integers(0, 1), choice=st.integers(0, 9), size=st.sampled_from([1, 4000, 1 << 20]))
    def read(self, end: int, choice: int, size: int) -> None:
        self._read(end, choice, size)

    def _read(self, end: int, choice: int, size: int) -> int:
        stream = self._pick(end, choice)
        if stream is None:
            return 0
        data = self.ends[end].read(stream, size)
        self.got[end, stream] += data
        return len(data)

    @rule(end=st.integers(0, 1), choice=st.integers(0, 9))
    def finish(self, end: int, choice: int) -> None:
        stream = self._pick(end, choice)
        if stream is not None:
            self.finished.add((end, stream))
            self.ends[end].finish(stream)

    @rule(end=st.integers(0, 1), choice=st.integers(0, 9), dice=st.integers(1, 6))
    def reset(self, end: int, choice: int, dice: int) -> None:
        stream = self._pick(end, choice)
        if stream is not None and dice == 6:
            self._cut(stream)

    @invariant()
    def bytes_arrive_in_order(self) -> None:
        for (end, stream), got in getattr(self, "got", {}).items():
            sent = self.sent.get((1 - end, stream), b"")
            assert sent[: len(got)] == got

    @invariant()
    def credit_adds_up(self) -> None:
        for session in getattr(self, "ends", []):
            assert session.buffered == sum(len(one.inbox) for one in session._streams.values())
            for one in session._streams.values():
                if one.reset is None and not one.fin_received and session._body is not one:
                    assert one.credit_in + len(one.inbox) + one.consumed == one.window
                assert one.credit_out >= 0
                assert one.credit_in >= 0

    def teardown(self) -> None:
        """Everything handed over arrives when both keep sending and reading."""
        if not hasattr(self, "ends"):
            return
        for _ in range(2000):
            quiet = not any(session.has_outgoing for session in self.ends) and not any(self.wires)
            for end in (0, 1):
                self.send(end, 1 << 20)
                self.deliver(end, 1 << 20)
                self.credit_adds_up()
                for choice in range(len(self.known[end])):
                    while self._read(end, choice, 1 << 20):
                        pass
            if quiet and not any(session.has_outgoing for session in self.ends):
                break
        assert not self.pending
        for end, stream in self.got:
            if stream not in self.cut:
                assert self.got[end, stream] == self.sent.get((1 - end, stream), b"")
                if (1 - end, stream) in self.finished:
                    assert self.ends[end].at_end(stream)


Conversation.TestCase.settings = settings(max_examples=share(60), stateful_step_count=40)
TestConversation = pytest.mark.slow(Conversation.TestCase)


@given(st.integers(1, 8), st.integers(1, 400_000), st.integers(0, 1 << 32))
@settings(max_examples=20)
def test_streams_share_a_connection_evenly(count: int, size: int, seed: int) -> None:
    session = YamuxSession(initiator=True, limits=YamuxLimits(), now=0.0)
    for _ in range(count):
        session.write(session.open(), memoryview(bytes(size)), 0.0)
    room = random.Random(seed).randrange(1, count * size + 1)
    raw = b"".join(session.outgoing(room, 0.0).messages)
    carried: dict[int, int] = {}
    at = 0
    while at < len(raw):
        header = frames.parse(raw, at)
        at += HEADER_SIZE + (header.length if header.kind == DATA else 0)
        if header.kind == DATA:
            carried[header.stream] = carried.get(header.stream, 0) + header.length
    shares = [carried.get(2 * n + 1, 0) for n in range(count)]
    assert max(shares) - min(shares) <= max(session.limits.max_message, room // count)


def test_readable_is_told_again_when_more_comes() -> None:
    session = YamuxSession(initiator=False, limits=SMALL, now=0.0)
    session.receive(pack(DATA, frames.SYN, 1, 1) + b"a", 0.0)
    assert session.receive(pack(DATA, 0, 1, 1) + b"b", 0.0) == [Readable(1)]

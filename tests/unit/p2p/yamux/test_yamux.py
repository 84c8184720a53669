"""Sessions of yamux and their frames, and what holds for every conversation, however it is split."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from p2p.errors import Misbehaviour
from p2p.yamux import frames
from p2p.yamux.frames import (
    ACK,
    DATA,
    FIN,
    GO_AWAY,
    HEADER_SIZE,
    INITIAL_WINDOW,
    PING,
    RST,
    SYN,
    WINDOW_UPDATE,
    YamuxLimits,
    pack,
)
from p2p.yamux.session import StreamLimit, YamuxSession
from p2p.yamux.stream import LARGE, Event, GoneAway, Inbox, Pong, Readable, ResetReason, StreamOpened, WasReset
from worlds.depth import share

# Sessions of yamux, their frames and what waits to be read.


# One rule of yamux a test, on a session that talks to hand-made frames or to a second session.


def server(**limits: float) -> YamuxSession:
    return YamuxSession(initiator=False, limits=YamuxLimits(**limits), now=0.0)  # type: ignore[arg-type]


def client(**limits: float) -> YamuxSession:
    return YamuxSession(initiator=True, limits=YamuxLimits(**limits), now=0.0)  # type: ignore[arg-type]


def said(session: YamuxSession, now: float = 0.0, limit: int = 1 << 30) -> list[tuple[frames.YamuxHeader, bytes]]:
    """Everything the session has to send, or a batch of it, as frames."""
    raw = b"".join(session.outgoing(limit, now).messages)
    found, at = [], 0
    while at < len(raw):
        header = frames.parse(raw, at)
        end = at + HEADER_SIZE + (header.length if header.kind == DATA else 0)
        found.append((header, raw[at + HEADER_SIZE : end]))
        at = end
    return found


def headers(session: YamuxSession, now: float = 0.0) -> list[tuple[int, int, int, int]]:
    return [tuple(header) for header, _ in said(session, now)]


def data(stream: int, body: bytes, flags: int = 0) -> bytes:
    return pack(DATA, flags, stream, len(body)) + body


def feed(session: YamuxSession, *parts: bytes, now: float = 0.0) -> list[Event]:
    return session.receive(b"".join(parts), now)


def opened(session: YamuxSession, streams: Iterable[int]) -> None:
    for number in streams:
        feed(session, pack(WINDOW_UPDATE, SYN, number, 0))
        session.accept()
    session.outgoing(1 << 30, 0.0)


def converse(one: YamuxSession, other: YamuxSession, now: float = 0.0) -> list[Event]:
    """Carry messages to and fro until both are silent; what ``other`` and then ``one`` heard."""
    events: list[Event] = []
    while one.has_outgoing or other.has_outgoing:
        for source, sink in ((one, other), (other, one)):
            for message in source.outgoing(1 << 20, now).messages:
                events += sink.receive(message, now)
    return events


# --- opening -------------------------------------------------------------------------------------------------------


def test_client_numbers_odd_server_even() -> None:
    assert [client().open(), server().open()] == [1, 2]
    session = client()
    assert [session.open() for _ in range(3)] == [1, 3, 5]


def test_a_stream_opened_by_the_peer_waits_to_be_accepted_and_is_acknowledged() -> None:
    session = server()
    assert feed(session, pack(WINDOW_UPDATE, SYN, 1, 0)) == [StreamOpened(1)]
    assert session.accept() == 1
    assert session.accept() is None
    assert headers(session) == [(WINDOW_UPDATE, ACK, 1, 0)]


def test_a_stream_may_be_opened_by_its_first_data() -> None:
    session = server()
    assert feed(session, data(1, b"hello", SYN)) == [StreamOpened(1), Readable(1)]
    assert session.read(1, 100) == b"hello"


def test_the_stream_above_the_limit_is_reset_and_its_data_dropped() -> None:
    session = server(max_inbound=3)
    opened(session, [1, 3, 5])
    assert feed(session, pack(WINDOW_UPDATE, SYN, 7, 0), data(7, b"x" * 1000), data(1, b"y")) == [Readable(1)]
    assert headers(session) == [(WINDOW_UPDATE, RST, 7, 0)]
    assert session.buffered == 1
    assert session.open_streams == 3


@pytest.mark.slow
def test_a_burst_of_opens_and_resets_never_exceeds_the_backlog() -> None:
    session = server(max_inbound=256, backlog=64)
    for number in range(1, 20_001, 2):
        feed(session, pack(WINDOW_UPDATE, SYN, number, 0), pack(WINDOW_UPDATE, RST, number, 0))
    assert session.open_streams == 0
    assert session.accept() is None


def test_ten_thousand_opens_cost_a_bounded_answer() -> None:
    session = server(max_inbound=256, backlog=256)
    feed(session, *(pack(WINDOW_UPDATE, SYN, number, 0) for number in range(1, 20_001, 2)))
    assert session.open_streams == 256
    assert not session.wants_input, "stop reading from who does not read our answers"
    answers = headers(session)
    assert len([one for one in answers if one[1] == RST]) == 10_000 - 256
    assert session.wants_input


def test_our_own_limit_is_told_and_a_place_comes_free() -> None:
    session = client(max_outbound=2)
    first, _second = session.open(), session.open()
    with pytest.raises(StreamLimit, match="2 streams are open"):
        session.open()
    session.reset(first)
    assert session.open() == 5


@pytest.mark.parametrize(
    ("frame", "rule"),
    [
        (pack(WINDOW_UPDATE, SYN, 2, 0), "yamux-syn"),
        (pack(WINDOW_UPDATE, SYN, 1, 0) * 2, "yamux-syn"),
        (pack(WINDOW_UPDATE, SYN, 5, 0) + pack(WINDOW_UPDATE, SYN, 3, 0), "yamux-syn"),
        (pack(WINDOW_UPDATE, 0, 1, 10), "yamux-stream-id"),
        (data(4, b""), "yamux-stream-id"),
        (pack(DATA, 0, 0, 0), "yamux-stream-id"),
        (pack(PING, SYN, 1, 0), "yamux-stream-id"),
        (b"\x01" + bytes(11), "yamux-version"),
        (b"\x00\x04" + bytes(10), "yamux-type"),
        (b"\x00\x02\x00\x10" + bytes(8), "yamux-flags"),
        (pack(DATA, SYN, 1, INITIAL_WINDOW + 1), "yamux-window"),
        (pack(DATA, SYN, 1, 0xFFFF_FFFF), "yamux-window"),
        (data(1, b"a", SYN | FIN) + data(1, b"b"), "yamux-fin"),
    ],
)
def test_a_broken_rule_ends_the_session_by_its_name(frame: bytes, rule: str) -> None:
    with pytest.raises(Misbehaviour) as caught:
        feed(server(), frame)
    assert caught.value.rule == rule


# --- credit --------------------------------------------------------------------------------------------------------


def test_nothing_is_sent_beyond_the_credit() -> None:
    session = client()
    stream = session.open()
    session.write(stream, memoryview(bytes(INITIAL_WINDOW + 10)), 0.0)
    sent = [header.length for header, _ in said(session) if header.kind == DATA]
    assert sum(sent) == INITIAL_WINDOW
    assert not session.has_outgoing
    feed(session, pack(WINDOW_UPDATE, ACK, stream, 7))
    out = session.outgoing(1 << 20, 0.0)
    assert (sum(map(len, out.messages)), out.drained) == (HEADER_SIZE + 7, [])
    feed(session, pack(WINDOW_UPDATE, 0, stream, 100))
    assert session.outgoing(1 << 20, 0.0).drained == [stream]


def test_a_peer_that_exceeds_its_window_is_cut_off() -> None:
    session = server()
    feed(session, data(1, bytes(INITIAL_WINDOW), SYN))
    with pytest.raises(Misbehaviour, match="more than was granted"):
        feed(session, data(1, b"x"))


def test_credit_comes_back_in_batches_and_grows_for_a_reader_who_keeps_up() -> None:
    session = server()
    feed(session, data(1, bytes(INITIAL_WINDOW), SYN))
    session.outgoing(1 << 20, 0.0)
    session.read(1, INITIAL_WINDOW // 2 - 1)
    assert not session.has_outgoing, "less than half a window is not worth a frame"
    session.read(1, 1)
    grant = INITIAL_WINDOW // 2 + INITIAL_WINDOW
    assert headers(session) == [(WINDOW_UPDATE, 0, 1, grant)]
    feed(session, data(1, bytes(grant)))
    with pytest.raises(Misbehaviour, match="more than was granted"):
        feed(session, data(1, b"x"))


def test_windows_stop_growing_at_the_limit_and_share_one_budget() -> None:
    session = server(max_window=1 << 20, extra_credit=1 << 20)
    granted = {}
    for stream in (1, 3, 5):
        credit = INITIAL_WINDOW
        feed(session, pack(WINDOW_UPDATE, SYN, stream, 0))
        for _ in range(8):
            feed(session, data(stream, bytes(min(credit, 65_536))))
            credit -= 65_536
            session.read(stream, 1 << 20)
            credit += sum(h.length for h, _ in said(session) if h.kind == WINDOW_UPDATE and h.stream == stream)
        granted[stream] = credit
    assert granted[1] <= 1 << 20
    assert sum(granted.values()) <= 3 * INITIAL_WINDOW + (1 << 20)
    session.reset(1)
    assert session._extra_credit > 0, "a stream that ends gives its share back"


def test_the_stream_with_most_unread_bytes_pays_for_all() -> None:
    session = server(max_buffered=600 << 10)
    feed(session, data(1, bytes(INITIAL_WINDOW), SYN), data(3, bytes(200 << 10), SYN))
    for _ in range(2):
        session.accept()
    events = feed(session, data(5, bytes(200 << 10), SYN))
    assert WasReset(1, ResetReason.OVERLOAD) in events
    assert session.buffered == 400 << 10
    assert session.read(5, 1 << 20) == bytes(200 << 10)


def test_streams_take_turns() -> None:
    session = client(max_frame=64 << 10)
    streams = [session.open() for _ in range(3)]
    for stream in streams:
        session.write(stream, memoryview(bytes(200_000)), 0.0)
    order = [header.stream for header, _ in said(session) if header.kind == DATA]
    assert order[:6] == [1, 3, 5, 1, 3, 5]


def test_a_message_is_never_larger_than_one_seal() -> None:
    session = client(max_message=1000)
    for _ in range(100):
        session.write(session.open(), memoryview(bytes(3000)), 0.0)
    messages = session.outgoing(1 << 30, 0.0).messages
    assert max(map(len, messages)) == 1000
    assert sum(map(len, messages)) == 100 * (2 * HEADER_SIZE + 3000)


@pytest.mark.parametrize("waiting", [1, 2, 4])
def test_a_batch_has_one_frame_of_each_stream_that_waits(waiting: int) -> None:
    session, batch = client(), 256 << 10
    streams = [session.open() for _ in range(waiting)]
    session.outgoing(batch, 0.0)
    for stream in streams:
        session.write(stream, memoryview(bytes(INITIAL_WINDOW)), 0.0)
    cut = [(header.stream, header.length) for header, _ in said(session, limit=batch)]
    assert [stream for stream, _ in cut[:waiting]] == streams
    assert {length for _, length in cut[:waiting]} == {min(INITIAL_WINDOW, batch // waiting) - HEADER_SIZE}


def test_a_large_body_is_cut_where_it_lies() -> None:
    session, body = client(), memoryview(bytes(200_000))
    session.write(session.open(), body, 0.0)
    messages = session.outgoing(1 << 20, 0.0).messages
    assert [len(each) for each in messages] == [2 * HEADER_SIZE, 65_519, 65_519, 65_519, 200_000 - 3 * 65_519]
    assert all(isinstance(each, memoryview) and each.obj is body.obj for each in messages[1:])


def test_an_answer_goes_before_payload() -> None:
    session = client()
    session.write(session.open(), memoryview(b"payload"), 0.0)
    feed(session, pack(PING, SYN, 0, 42))
    kinds = [header.kind for header, _ in said(session)]
    assert kinds == [WINDOW_UPDATE, PING, DATA]


# --- endings -------------------------------------------------------------------------------------------------------


def test_fin_follows_what_was_written() -> None:
    session = client()
    stream = session.open()
    session.write(stream, memoryview(b"last words"), 0.0)
    session.finish(stream)
    assert headers(session)[1:] == [(DATA, 0, 1, 10), (WINDOW_UPDATE, FIN, 1, 0)]


def test_both_ends_finish_and_nothing_is_left() -> None:
    one, other = client(), server()
    stream = one.open()
    one.write(stream, memoryview(b"question"), 0.0)
    one.finish(stream)
    converse(one, other)
    assert other.accept() == stream
    assert other.read(stream, 100) == b"question"
    assert other.at_end(stream)
    other.write(stream, memoryview(b"answer"), 0.0)
    other.release(stream, 0.0)
    converse(one, other)
    assert one.read(stream, 100) == b"answer"
    assert one.at_end(stream)
    one.release(stream, 0.0)
    assert (one.open_streams, other.open_streams) == (0, 0)


def test_reset_drops_what_is_unread_and_unsent_on_both_sides() -> None:
    one, other = client(), server()
    stream = one.open()
    one.write(stream, memoryview(bytes(INITIAL_WINDOW + 1)), 0.0)
    converse(one, other)
    other.accept()
    other.reset(stream)
    assert converse(one, other) == [WasReset(stream, ResetReason.BY_PEER)]
    assert one.reset_reason(stream) is ResetReason.BY_PEER
    one.reset(stream)
    assert (one.open_streams, other.open_streams, other.buffered) == (0, 0, 0)
    assert not one.has_outgoing, "a reset is not answered with a reset"


def test_reset_of_what_both_sides_had_finished_lets_go_of_what_is_unread() -> None:
    session = server()
    feed(session, data(1, b"unread", SYN | FIN))
    session.accept()
    session.finish(1)
    session.outgoing(1 << 20, 0.0)
    session.reset(1)
    assert (session.open_streams, session.buffered) == (0, 0)


def test_late_frames_of_a_stream_that_is_gone_are_dropped() -> None:
    session = server()
    feed(session, data(1, b"x", SYN))
    session.accept()
    session.reset(1)
    assert feed(session, data(1, bytes(1000)), pack(WINDOW_UPDATE, 0, 1, 5), pack(WINDOW_UPDATE, RST, 1, 0)) == []
    assert session.buffered == 0


def test_a_released_stream_drops_data_and_is_reset_when_the_peer_does_not_finish() -> None:
    session = server(linger_timeout=30.0)
    feed(session, data(1, b"unread", SYN))
    session.accept()
    session.release(1, now=0.0)
    feed(session, data(1, bytes(1000)))
    assert session.buffered == 0
    assert session.expire(29.9) == []
    session.outgoing(1 << 20, 0.0)
    session.expire(30.0)
    assert (WINDOW_UPDATE, RST, 1, 0) in headers(session)
    assert session.open_streams == 0


def test_a_sender_that_fills_the_window_of_a_released_stream_is_reset() -> None:
    session = server()
    opened(session, [1])
    session.release(1, now=0.0)
    session.outgoing(1 << 20, 0.0)
    feed(session, data(1, bytes(INITIAL_WINDOW - 1)))
    assert not session.has_outgoing
    feed(session, data(1, b"x"))
    assert headers(session) == [(WINDOW_UPDATE, RST, 1, 0)]
    assert session.open_streams == 0


def test_withdrawn_bytes_are_not_sent_and_frames_stay_whole() -> None:
    session = client(max_message=1012)
    stream = session.open()
    session.write(stream, memoryview(bytes(5000)), 0.0)
    first = session.outgoing(1500, 0.0).messages
    session.withdraw(stream)
    session.reset(stream)
    raw = b"".join(first + session.outgoing(1 << 20, 0.0).messages)
    peer = server()
    assert WasReset(1, ResetReason.BY_PEER) in feed(peer, raw)


def test_after_a_go_away_no_stream_is_opened_and_open_ones_go_on() -> None:
    session = client()
    stream = session.open()
    assert feed(session, pack(GO_AWAY, 0, 0, 0)) == [GoneAway(0)]
    with pytest.raises(StreamLimit, match="gone away"):
        session.open()
    assert feed(session, data(stream, b"still here")) == [Readable(stream)]


# --- time ----------------------------------------------------------------------------------------------------------


def test_ping_is_answered_with_its_value() -> None:
    session = server()
    feed(session, pack(PING, SYN, 0, 0xCAFE))
    assert headers(session) == [(PING, ACK, 0, 0xCAFE)]


def test_a_silent_connection_is_asked_and_then_given_up() -> None:
    session = client(ping_interval=30.0, ping_timeout=20.0)
    assert session.next_due() == 30.0
    session.expire(29.0)
    assert not session.has_outgoing
    session.expire(30.0)
    ((kind, flags, _, value),) = headers(session)
    assert (kind, flags) == (PING, SYN)
    assert session.next_due() == 50.0
    assert feed(session, pack(PING, ACK, 0, value), now=30.25) == [Pong(0.25)]
    session.expire(60.25)
    session.outgoing(1 << 20, 60.25)
    with pytest.raises(Misbehaviour, match="no answer to a ping"):
        session.expire(80.25)


def test_a_peer_that_talks_is_alive_even_without_a_pong() -> None:
    session = client(ping_interval=30.0, ping_timeout=20.0)
    session.expire(30.0)
    feed(session, pack(PING, SYN, 0, 1), now=45.0)
    session.expire(50.0)
    with pytest.raises(Misbehaviour):
        session.expire(65.0)


@pytest.mark.slow
def test_a_stream_that_gets_no_credit_is_reset_and_the_connection_kept() -> None:
    session = client(stall_timeout=60.0)
    stuck, lively = session.open(), session.open()
    session.write(stuck, memoryview(bytes(INITIAL_WINDOW + 1)), 1.0)
    session.outgoing(1 << 20, 2.0)
    assert session.expire(61.9) == []
    feed(session, pack(PING, SYN, 0, 1), now=61.0)
    assert session.expire(62.0) == [WasReset(stuck, ResetReason.STALLED)]
    assert (WINDOW_UPDATE, RST, stuck, 0) in headers(session)
    session.write(lively, memoryview(b"goes on"), 62.0)
    assert session.outgoing(1 << 20, 62.0).drained == [lively]


@pytest.mark.slow
def test_a_little_credit_now_and_then_is_enough() -> None:
    session = client(stall_timeout=60.0, ping_interval=1e6)
    stream = session.open()
    session.write(stream, memoryview(bytes(INITIAL_WINDOW + 100)), 0.0)
    for minute in range(50):
        session.outgoing(1 << 20, 50.0 * minute)
        feed(session, pack(WINDOW_UPDATE, 0, stream, 1), now=50.0 * minute + 40)
        assert session.expire(50.0 * minute + 49) == []


# The twelve bytes of a header, against the specification's examples and against whatever else may come.


@pytest.mark.parametrize(
    ("kind", "flags", "stream", "length", "raw"),
    [
        (frames.WINDOW_UPDATE, frames.SYN, 1, 0, "000100010000000100000000"),
        (frames.WINDOW_UPDATE, frames.ACK, 1, 262144, "000100020000000100040000"),
        (frames.DATA, 0, 0x0A0B0C0D, 5, "000000000a0b0c0d00000005"),
        (frames.DATA, frames.FIN, 2, 0, "000000040000000200000000"),
        (frames.PING, frames.SYN, 0, 0xDEADBEEF, "0002000100000000deadbeef"),
        (frames.GO_AWAY, 0, 0, 1, "000300000000000000000001"),
    ],
)
def test_header_has_the_bytes_of_the_specification(kind: int, flags: int, stream: int, length: int, raw: str) -> None:
    assert frames.pack(kind, flags, stream, length).hex() == raw
    assert frames.parse(bytes.fromhex(raw)) == frames.YamuxHeader(kind, flags, stream, length)


@given(st.binary(min_size=12, max_size=12))
def test_any_twelve_bytes_are_a_header_or_a_violation(raw: bytes) -> None:
    version, kind, flags, stream, length = frames.HEADER.unpack(raw)
    lawful = version == 0 and kind <= 3 and flags <= 15 and (stream == 0) == (kind >= 2)
    if lawful:
        assert frames.parse(raw) == (kind, flags, stream, length)
        assert frames.pack(kind, flags, stream, length) == raw
    else:
        with pytest.raises(Misbehaviour, match="yamux frame"):
            frames.parse(raw)


# Bytes come out as they went in, whatever the pieces, and small ones do not stay for themselves.

steps = st.lists(
    st.tuples(st.booleans(), st.one_of(st.integers(0, 40), st.sampled_from([LARGE - 1, LARGE, LARGE + 7]))), max_size=40
)


@given(steps)
def test_what_goes_in_comes_out_in_order(steps: list[tuple[bool, int]]) -> None:
    inbox, given, taken = Inbox(), b"", b""
    for number, (is_added, size) in enumerate(steps):
        if is_added:
            piece = bytes([number]) * size
            inbox.add(memoryview(piece))
            given += piece
        else:
            data = inbox.take(size)
            assert bool(data) == bool(size and len(given) > len(taken))
            assert len(data) <= size
            taken += data
        assert len(inbox) == len(given) - len(taken)
    while data := inbox.take(1 << 20):
        taken += data
    assert taken == given


def test_small_pieces_are_kept_together() -> None:
    inbox = Inbox()
    for _ in range(100_000):
        inbox.add(memoryview(b"x"))
    assert len(inbox._pieces) == 0
    assert inbox.take(1 << 20) == b"x" * 100_000


def test_a_piece_is_a_copy() -> None:
    inbox, scratch = Inbox(), bytearray(b"a" * LARGE)
    inbox.add(memoryview(scratch))
    scratch[:] = b"b" * LARGE
    assert inbox.take(LARGE) == b"a" * LARGE


def test_nothing_is_left_when_it_is_cleared() -> None:
    inbox = Inbox()
    inbox.add(memoryview(bytes(LARGE)))
    inbox.take(5)
    inbox.add(memoryview(b"tail"))
    inbox.clear()
    assert (len(inbox), inbox.take(9)) == (0, b"")
    inbox.add(memoryview(b"new"))
    assert inbox.take(9) == b"new"


# What holds for every conversation: splitting does not matter, bytes arrive once and in order, memory is bounded.


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

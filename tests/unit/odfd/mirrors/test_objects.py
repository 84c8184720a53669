"""Objects of mirrors: on their way, as files that grow, as long as they are kept."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from chain.errors import Environment, Invalid, Refused, Remote
from chain.instant import SECOND, Instant
from chain.multihash import Multihash
from chain.store.database import open_database
from chain.store.objects import DiskObjects
from odfd.datasets.uncommitted_objects import UncommittedObjects
from odfd.mirrors import object_fetcher
from odfd.mirrors.data_retention import RetainedRange, replanned
from odfd.mirrors.object_fetcher import HASTE, PATIENCE, WAIT, ObjectFetcher, ObjectLimits
from odfd.mirrors.quota import BlockQuota, MirrorQuota
from odfd.mirrors.sinks import PartialObject
from odfd.published.staging import IDLE_SECONDS, PER_FILE, StagingQuota
from odfd.resources.manifest import parse_size
from odfd.store.directory import open_state_directory
from odfd.store.holdings import PER_BLOCK, PER_OBJECT
from odfd.store.mirror_specs import MirrorSpec
from odfd.store.retention import Keep, Piece, first_kept, oldest_kept, parse_keep
from p2p.ports import PeerId

# What a row links to has no signed size: each peer is taken at its word, and none of them delays the others.

THING = b"a song" * 1000
NAME = Multihash.sha3_256(THING)


class Network:
    """``mute`` peers answer nothing, ``boasts`` offer it and give nothing, ``wrong`` lie about the size, ``slow`` ones
    let us wait for ten seconds; ``large`` ones say that it is four times as large, ``giant`` ones that no disk has
    room for it, ``short`` ones that it is nearly nothing."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.taken: list[tuple[str, int]] = []
        """From whom, and how many bytes by their word."""

    async def object_size(self, peer: PeerId, _name: Multihash) -> int | None:
        self.asked.append(peer)
        if peer.startswith("mute"):
            await trio.sleep(30)
            raise Remote("no answer in 30 s")
        await trio.sleep(0.01)
        lies = {"wrong": len(THING) + 1, "large": 4 * len(THING), "giant": 1 << 60, "short": 10}
        return None if peer.startswith("empty") else lies.get(peer.rstrip("0123456789"), len(THING))

    async def fetch_object(self, peers: list[PeerId], _name: Multihash, size: int, sink: Any, _pace: Any) -> None:
        (peer,) = peers
        self.taken.append((peer, size))
        await trio.sleep({"boasts": 80.0, "slow": 10.0}.get(peer.rstrip("0123456789"), 0.01))
        if peer.startswith("boasts"):
            raise Remote("no peer could give it")
        sink.write((THING + b"?")[:size])
        try:
            sink.finish()
        except Invalid as fault:
            raise Remote(fault.message) from fault


@pytest.fixture
def in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Virtual time does not know that a thread is at work, so here none is."""

    async def run_sync(work: Callable[..., Any], *args: Any) -> Any:
        return work(*args)

    monkeypatch.setattr(trio.to_thread, "run_sync", run_sync)


@pytest.fixture
def fetcher(tmp_path: Path) -> Iterator[Callable[[Network], ObjectFetcher]]:
    database = open_database(tmp_path / "odfd.sqlite")
    objects, partial = DiskObjects(tmp_path / "objects", database), tmp_path / "partial"
    partial.mkdir()
    yield lambda network: ObjectFetcher(
        objects,
        cast(Any, None),
        partial,
        cast(Any, network),
        ObjectLimits,
        UncommittedObjects(),
        StagingQuota(int, lambda _: None),
    )
    database.close()


async def took(fetching: ObjectFetcher, *names: str) -> float:
    began = trio.current_time()
    assert await fetching.linked(None, [PeerId(name) for name in names], NAME) == len(THING)
    assert fetching.objects.read(NAME) == THING
    fetching.objects.remove(NAME)
    return trio.current_time() - began


async def test_those_who_let_us_wait_delay_no_other(in_place: None, autojump_clock: Any, fetcher: Any) -> None:
    """Attack T-PEER-06: peers that claim to have linked objects and send none, or do not claim it.

    Defence: a further peer is asked after a quarter of a second; one that sends nothing for two seconds is left, and is
    asked last afterwards.
    """
    fetching = fetcher(Network())
    assert await took(fetching, "mute1", "mute2", "empty", "mute3", "wrong", "giver") <= 4 * WAIT
    fetching = fetcher(Network())
    waited = [await took(fetching, "boasts1", "giver", "boasts2", "boasts3") for _ in range(8)]
    assert sum(waited) <= 3 * HASTE + 8 * 4 * 0.02, "each is waited for once, and then comes last"


async def test_nobody_else_is_asked_while_one_gives_it(in_place: None, autojump_clock: Any, fetcher: Any) -> None:
    network = Network()
    await took(fetcher(network), *(f"giver{number}" for number in range(20)))
    assert len(network.asked) == 1


async def test_a_slow_one_is_waited_for_where_nobody_else_gives_it(
    in_place: None, autojump_clock: Any, fetcher: Any
) -> None:
    fetching = fetcher(Network())
    assert await took(fetching, "boasts", "slow", "empty") <= 2 * HASTE + PATIENCE + 10.1
    assert await took(fetching, "slow") <= HASTE + 10.1
    with pytest.raises(Remote, match=f"boasts: gave nothing of it in {PATIENCE:g} s"):
        await took(fetching, "boasts")


async def test_of_what_is_large_no_more_is_taken_falsely_than_there_is(
    in_place: None, autojump_clock: Any, fetcher: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attack T-PEER-08: a false size for a linked object, so that gigabytes are transferred for an object of kilobytes.

    Defence: 16 MiB on the claim of one peer; beyond that, others are asked for two seconds, and the peer with the
    smallest size comes first: no more than the true size is taken from each false peer, if one peer states it. If all
    are false, `limits.object-bytes`, the quota and the disk's reserve apply.

    Whoever claims more is not begun with while another says less, though it answers first.
    """
    lies, mutes = [f"large{number}" for number in range(5)], [f"mute{number}" for number in range(20)]
    monkeypatch.setattr(object_fetcher, "WORD", 5)
    for peers in ([*lies, "short", "wrong", "giver"], ["mute", *lies, "short", *mutes, "giver"]):
        network = Network()
        assert await took(fetcher(network), *peers) <= HASTE + 3 * WAIT
        assert network.taken == [("short", 10), ("giver", len(THING))]


async def test_a_size_for_which_there_is_no_room_ends_nothing_while_others_say_less(
    in_place: None, autojump_clock: Any, fetcher: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attack T-PEER-08: a false size for a linked object, so that a mirror stops for lack of disk space.

    Defence: another peer may state a smaller size: the size of one peer ends nothing.
    """
    monkeypatch.setattr(object_fetcher, "WORD", 1 << 62)
    fetching = fetcher(Network())
    fetching._limits = lambda: ObjectLimits(object_bytes=1 << 62)
    await took(fetching, "giant1", "giant2", "giver")
    with pytest.raises(Environment, match="bytes are missing"):
        await took(fetching, "giant1", "empty")


async def test_nothing_of_what_is_above_the_limit_is_taken(in_place: None, autojump_clock: Any, fetcher: Any) -> None:
    """Whether a peer offers it by its word, or a block names its size; not a byte is asked for, or reserved."""
    network = Network()
    fetching = fetcher(network)
    fetching._limits = lambda: ObjectLimits(object_bytes=len(THING))
    await took(fetching, "large1", "giver")
    assert network.taken == [("giver", len(THING))]
    fetching._limits = lambda: ObjectLimits(object_bytes=len(THING) - 1)
    with pytest.raises(Remote, match=r"giver: it has 6,000 bytes, and limits\.object-bytes allows 5,999"):
        await took(fetching, "giver")
    with pytest.raises(Refused, match="has 6,000 bytes") as refused:
        await fetching._fetch_promised(None, PeerId("giver"), NAME, len(THING), PATIENCE)
    assert (refused.value.rule, len(network.taken)) == ("object-bytes", 1)


# Objects on their way: what came stays over a restart, and what is another object goes.

WHOLE = os.urandom(300_000)
WHOLE_NAME = Multihash.sha3_256(WHOLE)
PART = 10_000


def fill(sink: PartialObject, until: int) -> None:
    while sink.received < until:
        sink.write(memoryview(WHOLE)[sink.received : sink.received + PART])


def test_what_came_stays_and_is_gone_on_with(tmp_path: Path) -> None:
    with open_state_directory(tmp_path) as home:
        first = PartialObject(tmp_path, home.objects, WHOLE_NAME)
        fill(first, 170_000)
        first.close()
        second = PartialObject(tmp_path, home.objects, WHOLE_NAME)
        assert second.received == 170_000
        fill(second, len(WHOLE))
        second.finish()
        assert home.objects.read(WHOLE_NAME) == WHOLE
        assert not (tmp_path / str(WHOLE_NAME)).exists()


def test_bytes_that_are_another_object_are_gone(tmp_path: Path) -> None:
    other = Multihash.sha3_256(b"another")
    with open_state_directory(tmp_path) as home:
        sink = PartialObject(tmp_path, home.objects, other)
        fill(sink, len(WHOLE))
        with pytest.raises(Invalid, match="the bytes hash to"):
            sink.finish()
        assert sink.received == 0
        sink.write(b"another")
        sink.finish()
        assert home.objects.read(other) == b"another"


# How much of a mirror's data is kept, as values.

DAY = 86_400 * SECOND


@pytest.mark.parametrize(
    ("text", "span", "size"),
    [
        ("all", None, None),
        ("30d", 30 * DAY, None),
        ("12h", DAY // 2, None),
        ("2w", 14 * DAY, None),
        ("10GiB", None, 10 << 30),
        ("1.5kB", None, 1500),
        ("0B", None, 0),
        ("30d,10MB", 30 * DAY, 10_000_000),
        ("10MB,30d", 30 * DAY, 10_000_000),
    ],
)
def test_bounds_are_read(text: str, span: int | None, size: int | None) -> None:
    assert parse_keep(text) == Keep(span=span, bytes=size)


@pytest.mark.parametrize(
    "text", ["", "0d", "30", "30 d", "-1d", "10GiB,5GiB", "1d,1d", "all,1d", "١d", "1e9B", "9" * 99]
)
def test_what_says_nothing_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(Invalid, match="how much data") as caught:
        parse_keep(text)
    assert "30d" in str(caught.value.hint)


@pytest.mark.parametrize("text", ["", "10", "GB", "1.5.5GB", "10 GB"])
def test_sizes_have_units(text: str) -> None:
    with pytest.raises(Invalid, match="not a size"):
        parse_size(text)


def test_days_are_counted_from_the_newest_block() -> None:
    pieces = [Piece(number, Instant(number * DAY), 10) for number in range(10)]
    newest = Instant(9 * DAY)
    assert oldest_kept(Keep(span=3 * DAY), newest, reversed(pieces), 10) == 6
    assert oldest_kept(Keep(bytes=25), newest, reversed(pieces), 10) == 8
    assert oldest_kept(Keep(bytes=9), newest, reversed(pieces), 10) == 10
    assert oldest_kept(Keep(), newest, reversed(pieces), 10) == 0


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 3), st.integers(0, 100)), min_size=1),
    st.none() | st.integers(0, 60),
    st.none() | st.integers(0, 2000),
)
def test_from_either_end_the_same_is_kept(
    steps: list[tuple[int, int, int]], span: int | None, size: int | None
) -> None:
    """What is kept is an end of the chain within both bounds, and one piece more would break one."""
    time = number = -1
    pieces = []
    for later, further, count in steps:
        time, number = time + later, number + further
        pieces.append(Piece(number, Instant(time), count))
    keep, newest, length = Keep(span=span, bytes=size), Instant(time), number + 1
    first = oldest_kept(keep, newest, reversed(pieces), length)
    kept = [piece for piece in pieces if piece.sequence >= first]
    total = sum(piece.bytes for piece in pieces)
    again = first_kept(keep, newest, iter(pieces), total, 0)
    assert [piece for piece in pieces if piece.sequence >= again] == kept
    assert first_kept(keep, newest, iter(()), 0, 3) == 3, "of nothing nothing is let go"
    assert size is None or sum(piece.bytes for piece in kept) <= size
    assert span is None or all(newest - piece.time <= span for piece in kept)
    if before := [piece for piece in pieces if piece.sequence < first]:
        more = sum(piece.bytes for piece in [before[-1], *kept])
        assert not keep.holds(before[-1], newest, more)


@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9), st.integers(0, 12))
def test_a_plan_claims_nothing_that_was_not_looked_at(seen: int, first: int, data: int, wanted: int) -> None:
    """Blocks from ``seen`` to ``data`` were looked at, and stay so; nothing asked for is left out."""
    seen, first, data = sorted((seen, first, data))
    after = replanned(RetainedRange(first, data, seen), wanted)
    assert after.seen <= after.first <= after.data
    looked_at = set(range(seen, data))
    assert set(range(after.seen, after.data)) <= looked_at
    here = set(range(first, data))
    assert set(range(after.first, after.data)) <= here
    assert after.data >= min(wanted, data)
    assert after.first <= max(wanted, first)


def test_a_plan_that_is_damaged_is_begun_anew() -> None:
    assert replanned(RetainedRange(0, 7, 1 << 62), 3) == RetainedRange(3, 3, 3)


# Whatever steps mirrors take, and wherever they are cut off: what lies on the disk counts, and is within the quota.


LIMIT = 60_000
SIZES = st.integers(0, 9_000)


class Kept:
    """What mirrors hold, without a database: all that ``MirrorQuota`` asks of ``DataRetention``."""

    def __init__(self) -> None:
        self.objects: dict[Multihash, int] = {}
        self.lower: list[Multihash] = []
        """Objects of a mirror of a lower priority, the oldest first."""
        self.blocks: list[int] = []

    def taken(self) -> int:
        objects = sum(self.objects.values()) + PER_OBJECT * len(self.objects)
        return objects + sum(self.blocks) + PER_BLOCK * len(self.blocks)

    def give_way(self, spec: MirrorSpec, needed: int) -> bool:
        if spec.priority <= 0 or sum(self.objects[name] for name in self.lower) < needed:
            return False
        while needed > 0:
            needed -= self.objects.pop(self.lower.pop(0))
        return True


class Mirrors(RuleBasedStateMachine):
    """The steps of mirrors: promises, bytes that come in parts, counting, blocks, staging, cuts, restarts."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name)
        self.partial, self.staged = folder / "partial", folder / "staged"
        self.partial.mkdir()
        self.staged.mkdir()
        self.kept: Any = Kept()
        self.now = 0.0
        self.number = 0
        self.start()

    def start(self) -> None:
        """A new process: promises and blocks that were not kept are gone, files and rows are not."""
        self.staging = StagingQuota(int, lambda size: self.quota.check_staged(size), lambda: self.now)
        self.staging.add(self.staged)
        self.quota = MirrorQuota(self.kept, self.partial, lambda: LIMIT, tuple, self.staging)
        self.coming: dict[Multihash, int] = {}
        self.walks: list[tuple[BlockQuota, list[int]]] = []

    def teardown(self) -> None:
        self._folder.cleanup()

    def _name(self) -> Multihash:
        self.number += 1
        return Multihash.sha3_256(self.number.to_bytes(4, "big"))

    def _spec(self, priority: int) -> MirrorSpec:
        return MirrorSpec(dataset="did:odf:x", name="x", priority=priority)

    @rule(sizes=st.lists(SIZES, min_size=1, max_size=4), priority=st.integers(0, 1))
    def promise(self, sizes: list[int], priority: int) -> None:
        wanted = {self._name(): size for size in sizes}
        with suppress(Environment):
            self.quota.promise(self._spec(priority), wanted)
            self.coming |= wanted

    @rule(part=st.floats(0, 1))
    def some_comes(self, part: float) -> None:
        for name, size in self.coming.items():
            (self.partial / str(name)).write_bytes(bytes(int(size * part)))

    @rule(is_lower=st.booleans())
    def one_is_whole(self, is_lower: bool) -> None:
        if self.coming:
            name, size = self.coming.popitem()
            (self.partial / str(name)).unlink(missing_ok=True)
            self.kept.objects[name] = size
            if is_lower:
                self.kept.lower.append(name)
            self.quota.take_back([name])

    @rule()
    def one_is_cut_off(self) -> None:
        """Its part stays."""
        if self.coming:
            name, _ = self.coming.popitem()
            self.quota.take_back([name])

    @rule(priority=st.integers(0, 1))
    def a_walk_begins(self, priority: int) -> None:
        self.walks.append((BlockQuota(self.quota, self._spec(priority)), []))

    @rule(sizes=st.lists(SIZES, min_size=1, max_size=3))
    def blocks_come(self, sizes: list[int]) -> None:
        if self.walks:
            room, blocks = self.walks[-1]
            with suppress(Environment):
                room.take(sum(sizes) + PER_BLOCK * len(sizes))
                blocks += sizes

    @rule()
    def they_are_kept(self) -> None:
        if self.walks:
            room, blocks = self.walks[-1]
            self.kept.blocks += blocks
            room.give_back(sum(blocks) + PER_BLOCK * len(blocks))
            blocks.clear()

    @rule()
    def a_walk_ends(self) -> None:
        if self.walks:
            room, _ = self.walks.pop()
            room.close()

    @rule(folder=st.sampled_from("ab"), size=SIZES)
    def a_block_is_staged(self, folder: str, size: int) -> None:
        with suppress(Environment):
            self.staging.take(self.staged / folder, size)
            blocks = self.staged / folder / "blocks"
            blocks.mkdir(parents=True, exist_ok=True)
            (blocks / str(self._name())).write_bytes(bytes(size))

    @rule(folder=st.sampled_from("ab"))
    def what_was_staged_is_taken_over(self, folder: str) -> None:
        self.staging.remove(self.staged / folder)

    @rule(seconds=st.sampled_from([1.0, IDLE_SECONDS]))
    def time_goes_by(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def the_process_is_killed(self) -> None:
        self.start()

    @invariant()
    def all_that_lies_here_is_within_the_quota(self) -> None:
        partial = sum(file.stat().st_size for file in self.partial.iterdir())
        staged = [file.stat().st_size for file in self.staged.rglob("*") if file.is_file()]
        waiting = sum(sum(blocks) for _, blocks in self.walks)
        assert self.kept.taken() + partial + sum(staged) + waiting <= LIMIT

    @invariant()
    def what_is_staged_is_counted(self) -> None:
        staged = [file.stat().st_size for file in self.staged.rglob("*") if file.is_file()]
        assert self.staging.total() >= sum(staged) + PER_FILE * len(staged)

    @invariant()
    def room_that_nobody_uses_is_free(self) -> None:
        """Nothing leaks: with no work under way only what lies here counts."""
        if not self.coming and not self.walks:
            assert self.quota.to_come({}) == 0
            assert self.quota._blocks == 0


Mirrors.TestCase.settings = settings(stateful_step_count=40, deadline=None)
TestMirrors = pytest.mark.slow(Mirrors.TestCase)


def test_what_is_staged_is_within_the_quota_and_no_mirror_gives_way_for_it(tmp_path: Path) -> None:
    """Attack T-PEER-08: files that are staged before anybody knows what they are, to push out mirrored data.

    Defence: they count towards the quota; leftovers are deleted for them, and no mirror gives way.

    Strangers' files are staged before anybody knows what they are: leftovers may go for them, data may not.
    """
    kept: Any = Kept()
    kept.blocks = [LIMIT - 2_000 - PER_BLOCK]
    kept.give_way = lambda *_: pytest.fail("a mirror gave way")
    quota = MirrorQuota(kept, tmp_path, lambda: LIMIT, tuple, StagingQuota(int, lambda _: None))
    quota.check_staged(2_000)
    with pytest.raises(Environment) as caught:
        quota.check_staged(2_001)
    assert caught.value.rule == "mirror-quota"
    (tmp_path / "leftover").write_bytes(bytes(500))
    quota.check_staged(2_000)
    assert not (tmp_path / "leftover").exists()


def test_what_is_promised_is_within_the_quota_with_all_that_was_promised_before(tmp_path: Path) -> None:
    quota = MirrorQuota(cast(Any, Kept()), tmp_path, lambda: LIMIT, tuple, StagingQuota(int, lambda _: None))
    spec = MirrorSpec(dataset="did:odf:x", name="x")
    half, rest = Multihash.sha3_256(b"half"), Multihash.sha3_256(b"rest")
    quota.promise(spec, {half: LIMIT // 2 - PER_OBJECT})
    with pytest.raises(Environment) as caught:
        quota.promise(spec, {rest: LIMIT // 2 - PER_OBJECT + 1})
    assert caught.value.rule == "mirror-quota"
    quota.promise(spec, {half: LIMIT // 2 - PER_OBJECT, rest: LIMIT // 2 - PER_OBJECT})
    with pytest.raises(Environment):
        quota.promise_blocks(spec, 1)
    quota.take_back([rest])
    quota.promise_blocks(spec, LIMIT // 2)
    with pytest.raises(Environment):
        quota.promise(spec, {rest: 0})

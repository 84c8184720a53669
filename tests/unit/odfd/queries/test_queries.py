"""Queries of a node: whose turn it is, what columns answers have, and the desk of Flight."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pyarrow as pa
import pytest
import structlog
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from chain.data.arrow_schema import from_arrow
from chain.errors import Environment, Fault, Refused
from chain.ids import DatasetId
from chain.instant import Instant, from_millis
from chain.model.events import DatasetKind, Seed, SetDataSchema, SetInfo, SetVocab
from chain.multihash import Multihash
from chain.state import ChainState
from chain.store.base import Append, Head, Rewrite
from chain.store.database import open_database
from chain.store.objects import DiskObjects
from chain.store.shards import Shard, View
from chain.store.sqlite import SqliteChain, SqliteChains
from config.load import load
from config.schema import ConfigError, opened_doors
from engines.errors import LimitExceeded
from engines.query.frames import ROWS, frame
from engines.query.reader import QueryLimits
from engines.query.views import SliceView
from odfd.control import wire
from odfd.control.tokens import Tokens
from odfd.flight import relay
from odfd.flight.backend import FlightBackend
from odfd.flight.relay import Relay
from odfd.node.settings_check import check_components
from odfd.queries import log_columns, sharded_cuts
from odfd.queries.askers import OWNER_ITSELF, Crowd, QueryCaller
from odfd.queries.cuts import Cut
from odfd.queries.doors import BUSY, Door, load_door
from odfd.queries.folds import FoldStore
from odfd.queries.log_columns import LogColumns, LogColumnsCache
from odfd.runtime import extensions
from odfd.runtime.extensions import DOORS
from odfd.services.queries.fair_turns import LAST_FRAME, WAITING, FairTurns
from odfd.services.queries.service import QueryService
from worlds.chains import linked
from worlds.eventually import PATIENCE

# Turns, deadlines and doors of queries.


# Turns of queries, in virtual time: who asks without end keeps nobody out.

READERS, MOST = 4, 2
"""Places, and those of strangers."""
SHARE = Crowd.STRANGERS.value


class Askers:
    """Callers of two turns, and what became of each of their queries."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.turns = FairTurns(READERS)
        self._nursery = nursery
        self.told: list[tuple[str, str, float]] = []
        """QueryCaller, the rule by which its query ended (empty: answered), and when."""

    async def ask(self, caller: str, seconds: float, *, sends: bool = False) -> None:
        """Names of accounts are words; others are blocks of addresses."""
        if caller == OWNER_ITSELF.name:
            known = OWNER_ITSELF
        else:
            known = QueryCaller(Crowd.ACCOUNTS if caller.isalpha() else Crowd.STRANGERS, caller)
        try:
            async with self.turns.one(known) as sending:
                if sends:
                    with sending():
                        await trio.sleep(seconds)
                await trio.sleep(seconds)
        except (LimitExceeded, Refused) as fault:
            self.told.append((caller, fault.rule, trio.current_time() - self.began))
        else:
            self.told.append((caller, "", trio.current_time() - self.began))

    async def begin(self, caller: str, seconds: float = 1e6, *, again: bool = False, sends: bool = False) -> None:
        """Lets a caller ask, and ``again`` as soon as it is told anything. Returns when it waits, or is at work."""
        self.began = getattr(self, "began", trio.current_time())

        async def asking() -> None:
            await self.ask(caller, seconds, sends=sends)
            while again:
                if self.told[-1][1] == BUSY:
                    await trio.sleep(0.1)
                await self.ask(caller, seconds)

        self._nursery.start_soon(asking)
        await trio.testing.wait_all_tasks_blocked()

    def ends(self, caller: str) -> list[tuple[str, float]]:
        return [(rule, when) for who, rule, when in self.told if who == caller]


@pytest.mark.parametrize("strangers", [("1.1.1.0/24", "2.2.2.0/24"), ("", "")])
async def test_two_endless_queries_keep_nobody_out(
    autojump_clock: trio.testing.MockClock, strangers: tuple[str, str]
) -> None:
    """Attack T-QUERY-04: two anonymous callers that each ask without end over HTTP or Flight, so that no other is
    answered.

    Defence: while another caller waits, a query has ten seconds; the next turn goes to the subnet with the fewest
    queries at work that was served longest ago.

    Each is ended when another waits, however soon it asks again. Without a name it is one of a proxy's clients.
    """
    async with trio.open_nursery() as nursery:
        crowd = Askers(nursery)
        for stranger in strangers:
            await crowd.begin(stranger, again=True)
        await trio.sleep(100 * SHARE)
        assert not crowd.told, "while nobody waits they go on"
        for number in range(10):
            asked = trio.current_time()
            await crowd.ask(f"9.9.{number}.0/24", 1.0)
            assert trio.current_time() - asked <= SHARE + 1.0
        assert [rule for who, rule, _ in crowd.told if who.startswith("9.")] == [""] * 10
        assert {rule for who, rule, _ in crowd.told if not who.startswith("9.")} == {"query-share"}
        nursery.cancel_scope.cancel()


async def test_queries_of_one_caller_end_each_other_not(autojump_clock: trio.testing.MockClock) -> None:
    async with trio.open_nursery() as nursery:
        crowd = Askers(nursery)
        for _ in range(3):
            await crowd.begin("1.1.1.0/24", 5 * SHARE)
        await trio.sleep(20 * SHARE)
        assert crowd.ends("1.1.1.0/24") == [("", 5 * SHARE), ("", 5 * SHARE), ("", 10 * SHARE)]


async def test_the_turn_is_of_who_had_the_fewest(autojump_clock: trio.testing.MockClock) -> None:
    """Sixteen of one caller in line: one of another is answered before all but those at work."""
    async with trio.open_nursery() as nursery:
        crowd = Askers(nursery)
        for _ in range(MOST + WAITING):
            await crowd.begin("1.1.1.0/24", again=True)
        await crowd.begin("2.2.2.0/24", 1.0)
        await crowd.begin("3.3.3.0/24", 1.0)
        await trio.sleep(SHARE + 2.0)
        assert crowd.ends("2.2.2.0/24") == crowd.ends("3.3.3.0/24") == [("", SHARE + 1.0)]
        nursery.cancel_scope.cancel()


async def test_a_full_line_is_left_by_who_fills_it(autojump_clock: trio.testing.MockClock) -> None:
    """Attack T-QUERY-04: an anonymous caller that fills the queue of queries.

    Defence: in a full queue the caller with most entries makes room for callers with fewer.
    """
    async with trio.open_nursery() as nursery:
        crowd = Askers(nursery)
        for _ in range(MOST + WAITING + 3):
            await crowd.begin("1.1.1.0/24")
        assert [rule for rule, _ in crowd.ends("1.1.1.0/24")] == [BUSY] * 3
        for number in range(WAITING - 1):
            await crowd.begin(f"9.9.{number}.0/24")
        assert [rule for rule, _ in crowd.ends("1.1.1.0/24")] == [BUSY] * (3 + WAITING - 1)
        await crowd.begin("8.8.8.0/24")
        assert crowd.ends("8.8.8.0/24")[0][0] == BUSY, "sixteen others wait, with one query each"
        nursery.cancel_scope.cancel()


async def test_a_frame_that_is_sent_is_sent_whole(autojump_clock: trio.testing.MockClock) -> None:
    """Its share is over in the middle of it: the rest goes out, but for a client that does not read."""
    async with trio.open_nursery() as nursery:
        crowd = Askers(nursery)
        await crowd.begin("1.1.1.0/24", SHARE + 3.0, sends=True)
        await crowd.begin("2.2.2.0/24", sends=True)
        await crowd.begin("3.3.3.0/24")
        await crowd.begin("4.4.4.0/24")
        await trio.sleep(10 * SHARE)
        assert crowd.ends("1.1.1.0/24") == [("query-share", SHARE + 3.0)]
        assert crowd.ends("2.2.2.0/24") == [("query-share", SHARE + LAST_FRAME)]
        nursery.cancel_scope.cancel()


async def test_who_leaves_gives_the_turn_back(autojump_clock: trio.testing.MockClock) -> None:
    turns = FairTurns(2)
    async with trio.open_nursery() as nursery:
        crowd = Askers(nursery)
        crowd.turns = turns
        with trio.CancelScope() as leaving:
            async with trio.open_nursery() as clients:

                async def stay(begun: Callable[[], None] = leaving.cancel) -> None:
                    async with turns.one(QueryCaller(Crowd.STRANGERS, "1.1.1.0/24")):
                        await trio.sleep(1.0)
                        begun()
                        await trio.sleep_forever()

                clients.start_soon(stay)
                clients.start_soon(stay)
        await crowd.begin("1.1.1.0/24", 1.0)
        await trio.sleep(2.0)
        assert crowd.ends("1.1.1.0/24") == [("", 1.0)]


async def test_one_account_keeps_out_no_other_and_none_the_owner(autojump_clock: trio.testing.MockClock) -> None:
    """Attack T-QUERY-04: an account that asks without end with any number of queries, so that neither other accounts
    nor the owner are answered.

    Defence: one place is the owner's, whose queries have no time limit; while another account waits, a query has a
    minute, and turns rotate.

    The first asks without end, with as many queries as it likes; strangers do likewise.
    """
    async with trio.open_nursery() as nursery:
        crowd = Askers(nursery)
        for _ in range(READERS + 3):
            await crowd.begin("mallory", again=True)
            await crowd.begin("6.6.6.0/24", again=True)
        asked = trio.current_time()
        for _ in range(5):
            await crowd.ask("owner", 1.0)
        assert trio.current_time() - asked == 5.0, "a place is left to the owner"
        for number in range(5):
            asked = trio.current_time()
            await crowd.ask(f"alice{chr(97 + number)}", 1.0)
            assert trio.current_time() - asked <= Crowd.ACCOUNTS.value + 1.0
        assert {rule for who, rule, _ in crowd.told if who.startswith("alice")} == {""}
        assert [rule for rule, _ in crowd.ends("owner")] == [""] * 5
        nursery.cancel_scope.cancel()


async def test_the_owner_is_ended_for_nobody_and_fills_all_places(autojump_clock: trio.testing.MockClock) -> None:
    async with trio.open_nursery() as nursery:
        crowd = Askers(nursery)
        for _ in range(READERS + WAITING + 1):
            await crowd.begin("owner", 5 * Crowd.ACCOUNTS.value)
        await crowd.begin("alice", 1.0)
        await trio.sleep(40 * Crowd.ACCOUNTS.value)
        rounds = -(-(READERS + WAITING + 1) // READERS)
        assert crowd.ends("owner")[-1] == ("", 5 * Crowd.ACCOUNTS.value * rounds)
        assert crowd.ends("alice") == [("", 5 * Crowd.ACCOUNTS.value + 1.0)], "it is the next to have a place"


@pytest.mark.parametrize("caller", ["alice", "1.1.1.0/24"])
async def test_with_one_place_it_goes_round(autojump_clock: trio.testing.MockClock, caller: str) -> None:
    async with trio.open_nursery() as nursery:
        crowd = Askers(nursery)
        crowd.turns = FairTurns(1)
        await crowd.begin(caller, again=True)
        await crowd.ask("owner", 1.0)
        assert crowd.ends("owner")[0][0] == ""
        assert crowd.ends(caller)[0][0] == "query-share"
        nursery.cancel_scope.cancel()


async def test_strangers_in_line_end_no_query_that_makes_no_room_for_them(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Two of them are at work, which is what they may have: an account's query is in nobody's way."""
    async with trio.open_nursery() as nursery:
        crowd = Askers(nursery)
        await crowd.begin("alice", 10 * Crowd.ACCOUNTS.value)
        for block in range(4):
            await crowd.begin(f"1.1.{block}.0/24", again=True)
        await trio.sleep(11 * Crowd.ACCOUNTS.value)
        assert crowd.ends("alice") == [("", 10 * Crowd.ACCOUNTS.value)]
        nursery.cancel_scope.cancel()


# The time of a query: what is under way is sent whole, so that the client can read why the rows end.

_SECONDS = 5.0
_ROWS = memoryview(frame(ROWS, b"rows"))


async def _answered(seconds_of_a_send: float) -> tuple[float, int]:
    """Sends rows without an end; returns when the query ended, and how many frames were sent whole."""
    processes: Any = SimpleNamespace(limits=QueryLimits(seconds=_SECONDS))
    service = QueryService(*([None, processes, None, None]))  # type: ignore[arg-type]
    head: Any = wire.QueryHead(pins=(), standing="data", standings=())
    sent: list[bytes] = []

    async def rows() -> AsyncGenerator[tuple[bytes, memoryview], None]:
        while True:
            await trio.lowlevel.checkpoint()
            yield ROWS, _ROWS

    async def send(data: bytes | memoryview) -> None:
        await trio.sleep(seconds_of_a_send)
        sent.append(bytes(data))

    async def signing(_kind: bytes, whole: memoryview) -> memoryview:
        return whole

    with pytest.raises(LimitExceeded, match="more than 5 s"):
        await service._pass_on(rows(), head, (send, send), signing, service._end)
    return trio.current_time(), len(sent)


@pytest.mark.parametrize(
    ("seconds", "end", "whole"),
    [(2.0, 6.0, 3), (4.0, 8.0, 2), (1000.0, _SECONDS + LAST_FRAME, 0)],
    ids=["often", "once", "a client that does not read"],
)
def test_at_the_deadline_a_frame_that_is_sent_is_sent_whole(seconds: float, end: float, whole: int) -> None:
    clock = MockClock(autojump_threshold=0)

    async def ended() -> tuple[float, int]:
        begun = trio.current_time()
        last, count = await _answered(seconds)
        return last - begun, count

    assert trio.run(ended, clock=clock) == (pytest.approx(end), whole)


# A door is found by its name where a setting opens it, loaded then alone, and refused where nobody installed it.


class OtherDoor(Door):
    """Of another package."""


class Entry:
    def load(self) -> type[Door]:
        return OtherDoor


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extensions, "extensions", lambda _: {"other": Entry()})


def loaded(folder: Path, text: str) -> Any:
    file = folder / "odfd.toml"
    file.write_text(text)
    return load({"HOME": str(folder)}, file)


def test_settings_say_which_doors_they_open(tmp_path: Path) -> None:
    assert opened_doors(loaded(tmp_path, "").settings) == {}
    site = '[http]\nlisten = ["127.0.0.1:0"]\nquery = true\n'
    text = f'[node]\ndoors = ["other"]\n{site}[flight]\nlisten = ["127.0.0.1:0"]\n'
    opened = {"flight": "flight.listen", "kamu": "http.query", "other": "node.doors"}
    assert opened_doors(loaded(tmp_path, text).settings) == opened


def test_every_door_of_a_setting_is_an_entry_point_that_is_a_door() -> None:
    own = {name: each.load() for name, each in extensions.extensions(DOORS).items()}
    assert {"flight", "kamu"} <= own.keys()
    assert all(issubclass(door, Door) for door in own.values())


@pytest.mark.usefixtures("added")
def test_a_door_of_another_package_is_loaded(tmp_path: Path) -> None:
    check_components(loaded(tmp_path, '[node]\ndoors = ["other"]\n'))
    assert load_door("other") is OtherDoor


@pytest.mark.usefixtures("added")
@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("node.doors", '[node]\ndoors = ["unknown"]\n'),
        ("flight.listen", '[flight]\nlisten = ["127.0.0.1:0"]\n'),
        ("http.query", '[http]\nlisten = ["127.0.0.1:0"]\nquery = true\n'),
    ],
)
def test_a_door_that_nobody_installed_is_refused_at_its_setting(setting: str, text: str, tmp_path: Path) -> None:
    settings = loaded(tmp_path, text)
    with pytest.raises(ConfigError) as refused:
        check_components(settings)
    (problem,) = refused.value.problems
    assert problem.place == settings.origins[setting]
    assert "are not installed" in problem.message
    assert "install the package that adds them" in problem.hint


def test_a_node_whose_settings_open_none_loads_none() -> None:
    program = "import sys, odfd.node.assembly; print(*{'odfd.flight', 'odfd.kamu'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


# What queries keep of logs and folds, and cuts of shards.


# Folds on disk: found for their history alone, bounded, and taken from nobody but a file.

DATASET = DatasetId(bytes.fromhex("ed01") + bytes(32))
BLOCK = Multihash.parse("f1620" + "ab" * 32)
SCHEMA = pa.schema({"x": pa.int64()}).serialize().to_pybytes()
VIEW = SliceView(name="v", files=(), schema=SCHEMA, fold="key", key=("x",))


def store(tmp_path: Path, most: int = 100) -> FoldStore:
    return FoldStore(tmp_path / "folds", most)


def made(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "made"
    path.write_bytes(data)
    return path


def test_a_fold_is_found_for_its_cut_its_history_and_its_way(tmp_path: Path) -> None:
    folds = store(tmp_path)
    folds.keep(DATASET, made(tmp_path, b"old"), VIEW, (3, BLOCK), 1)
    folds.keep(DATASET, made(tmp_path, b"new"), VIEW, (11, BLOCK), 2)
    asked: list[tuple[int, str]] = []
    found = folds.find(DATASET, VIEW, 20, lambda *each: not asked.append(each))
    assert found is not None
    assert (found.path.read_bytes(), found.file.rows, asked) == (b"new", 2, [(10, str(BLOCK))])
    earlier = folds.find(DATASET, VIEW, 10, lambda *_: True)
    assert earlier is not None
    assert earlier.path.read_bytes() == b"old"
    assert folds.find(DATASET, VIEW, 2, lambda *_: True) is None
    assert folds.find(DATASET, VIEW, 20, lambda *_: False) is None
    other = SliceView(name="v", files=(), schema=VIEW.schema, fold="rows")
    assert folds.find(DATASET, other, 20, lambda *_: True) is None


def test_the_least_used_make_room(tmp_path: Path) -> None:
    folds = store(tmp_path)
    for size in (1, 2):
        folds.keep(DATASET, made(tmp_path, bytes(40)), VIEW, (size, BLOCK), 1)
        (newest,) = (tmp_path / "folds").glob(f"*/{size}.*")
        os.utime(newest, ns=(size, size))
    assert folds.find(DATASET, VIEW, 1, lambda *_: True) is not None, "used now"
    folds.keep(DATASET, made(tmp_path, bytes(40)), VIEW, (3, BLOCK), 1)
    assert sorted(path.name[0] for path in (tmp_path / "folds").glob("*/*")) == ["1", "3"]
    with pytest.raises(Refused):
        folds.keep(DATASET, made(tmp_path, bytes(101)), VIEW, (4, BLOCK), 1)
    assert len(list((tmp_path / "folds").glob("*/*"))) == 2, "nothing half-written"


def test_a_fold_is_a_file_and_no_link(tmp_path: Path) -> None:
    """Attack T-QUERY-01: a slice that makes its reader write a false cached state, or a link in its place.

    Defence: the state is computed by a process that reads that dataset alone, copied as bytes of a file, and hashed
    before it is read.

    What a query's process leaves may be anything.
    """
    secret = made(tmp_path, b"secret")
    link, pipe = tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(secret)
    os.mkfifo(pipe)
    for bad in (link, pipe, tmp_path / "nothing"):
        with pytest.raises(Fault) as refusal:
            store(tmp_path).keep(DATASET, bad, VIEW, (1, BLOCK), 1)
        assert isinstance(refusal.value, Environment) or refusal.value.rule == "query-fold"
    assert not list((tmp_path / "folds").glob("*/*"))


# Columns of logs are described once for each cut, and never by another history's blocks.

LOGGED = DatasetId.from_public_key(b"d" * 32)
SEED = Seed(dataset_id=LOGGED, dataset_kind=DatasetKind.ROOT)
OLD, NEW, OTHER = (pa.schema({name: pa.int64() for name in names}) for names in ("a", "ab", "z"))
EVENTS = (
    SEED,
    SetVocab(offset_column="n"),
    SetDataSchema(schema=from_arrow(OLD)),
    SetInfo(description="x"),
    SetDataSchema(schema=from_arrow(NEW)),
)


@pytest.fixture
def chains(tmp_path: Path) -> Iterator[SqliteChains]:
    database = open_database(tmp_path / "odfd.sqlite")
    made = SqliteChains(database, DiskObjects(tmp_path / "objects", database))
    made.commit([Append(dataset=LOGGED, expected=None, blocks=linked(EVENTS, Instant(0)), objects=())])
    yield made
    database.close()


def cut(chain: SqliteChain, size: int) -> Cut:
    return Cut(size=size, block=chain.block_at(size - 1).hash)


def columns(described: LogColumns | ChainState) -> list[str]:
    assert isinstance(described, LogColumns)
    return pa.ipc.read_schema(pa.py_buffer(described.schema)).names


def test_each_cut_has_its_columns(chains: SqliteChains) -> None:
    cache, chain = LogColumnsCache(), chains.chain(LOGGED)
    for _ in range(2):
        assert isinstance(cache.at(chain, cut(chain, 2)), ChainState), "no columns yet"
        old, new = cache.at(chain, cut(chain, 4)), cache.at(chain, cut(chain, 5))
        assert (columns(old), columns(new)) == (["a"], ["a", "b"])
        assert isinstance(old, LogColumns)
        assert isinstance(new, LogColumns)
        assert (old.mixed, new.mixed) == (False, True)
        assert old.system == ("n", "op", "system_time")


def test_a_known_cut_decodes_no_state(chains: SqliteChains, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, chain = LogColumnsCache(), chains.chain(LOGGED)
    found = cache.at(chain, cut(chain, 5))
    monkeypatch.setattr(log_columns, "load_state", lambda *_: pytest.fail("it is known"))
    assert cache.at(chain, cut(chain, 5)) is found


def test_what_a_rewrite_mixes_in_is_not_kept(chains: SqliteChains, monkeypatch: pytest.MonkeyPatch) -> None:
    """The chain gets another history while it is read for a cut, and its first one again."""
    cache, chain, load = LogColumnsCache(), chains.chain(LOGGED), log_columns.load_state
    first = linked(EVENTS, Instant(0))
    other = linked(
        (*EVENTS[:2], SetDataSchema(schema=from_arrow(OTHER)), *EVENTS[3:4], SetInfo(description="y")), Instant(0)
    )

    def rewritten(blocks: Any) -> None:
        head = chain.head()
        assert head is not None
        chains.rewrite(
            Rewrite(dataset=LOGGED, expected=Head(head.hash, head.sequence_number), keep=2, blocks=blocks[2:])
        )

    def meanwhile(*args: Any) -> ChainState:
        rewritten(other)
        try:
            return load(*args)
        finally:
            rewritten(first)

    wanted = cut(chain, 5)
    with monkeypatch.context() as patch:
        patch.setattr(log_columns, "load_state", meanwhile)
        assert columns(cache.at(chain, wanted)) == ["z"]
    assert columns(cache.at(chain, wanted)) == ["a", "b"]


def test_a_schema_that_is_larger_than_the_cache_is_described_each_time(
    chains: SqliteChains, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_columns, "_BYTES", 100)
    cache, chain = LogColumnsCache(), chains.chain(LOGGED)
    for _ in range(2):
        assert columns(cache.at(chain, cut(chain, 5))) == ["a", "b"]


# What satisfies a requirement of several shards is cut at one time of all.

TIMES = st.lists(st.integers(0, 9), min_size=1, max_size=6).map(sorted)


class Chains:
    """Chains of blocks of these times."""

    def __init__(self, times: list[list[int]]) -> None:
        self._times = times

    def chain(self, place: Any) -> Any:
        times = self._times[place]

        def block_at(number: int) -> Any:
            return SimpleNamespace(hash=(place, number), system_time=from_millis(times[number]), sequence_number=number)

        return SimpleNamespace(block_at=block_at, head=lambda: Head((place, len(times) - 1), len(times) - 1))  # type: ignore[arg-type]


class Reads:
    """In place of a store's."""

    def __init__(self, _: Any, chains: Chains) -> None:
        self._chains = chains

    def read(self, shards: list[int]) -> Any:
        found = {}
        for each in shards:
            chain = self._chains.chain(each)
            found[each] = View(Shard(chain.head(), 0), chain.block_at)
        return found


@pytest.mark.slow
@given(st.lists(st.tuples(TIMES, st.integers(0, 6)), min_size=2, max_size=4))
def test_no_shard_is_cut_beyond_what_satisfies_or_within_a_transaction(said: list[tuple[list[int], int]]) -> None:
    times = [each for each, _ in said]
    reach = [min(len(each), most) for each, most in said]
    home: Any = SimpleNamespace(database=None, chains=Chains(times))
    shards: Any = [SimpleNamespace(id=place, name=f"s{place}") for place in range(len(times))]
    cuts: Any = [Cut(size=len(each), block=(place, len(each) - 1)) for place, each in enumerate(times)]  # type: ignore[arg-type]
    request = wire.QueryRequest(sql="", require="attested", cut=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharded_cuts, "SqliteShards", Reads)
        try:
            found = sharded_cuts.satisfying(home, shards, cuts, request, lambda each, _: reach[each.id])
        except Refused:
            found = None
    whole = [place for place in range(len(times)) if reach[place] == len(times[place])]
    limits = [times[place][reach[place]] for place in range(len(times)) if place not in whole]
    if not limits:
        assert found == cuts
        return
    wanted = [sum(time < min(limits) for time in each) for each in times]
    assert (found is None) == (not all(wanted))
    if found is not None:
        assert [each.size for each in found] == wanted
        assert all(size <= most for size, most in zip(wanted, reach, strict=True))


# The desk of Flight and the relay before it.


# What the desk of Flight tells whoever gave no token.

TOKEN = "a-token-of-the-owner"


class _Broken:
    """The store cannot be read."""

    async def answer(self, *_: Any, owner: bool) -> None:
        raise Environment("cannot read /home/alice/odfd/objects/x", rule="object-read")

    def states(self, *, owner: bool) -> list[Any]:
        raise Environment("cannot read /home/alice/odfd/objects/x", rule="object-read")


@pytest.mark.parametrize("path", ["/query", "/datasets"])
async def test_others_are_told_nothing_of_this_machine(path: str, tmp_path: Path) -> None:
    """Attack T-PRIVATE-02: provoking an error that shows paths of the machine.

    Defence: the answer says only that the node cannot answer now; the cause is in its log.
    """
    file = tmp_path / "tokens"
    file.write_text(f"alice {TOKEN}\n")
    file.chmod(0o600)
    desk = FlightBackend(_Broken(), Tokens(file, "flight.tokens", required=False), structlog.get_logger())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(desk), base_url="http://desk") as client:

        async def told(token: str) -> str:
            said = await client.post(path, json={"token": token, "request": {"sql": "select 1"}})
            assert said.status_code == 503
            return said.text

        assert "/home/alice" in await told(TOKEN)
        assert "/home/alice" not in await told("")
        file.chmod(0o644)
        assert str(tmp_path) not in await told(TOKEN), "who they are is not known yet"


# Clients of Flight that say nothing keep none out that speaks.


class Lines:
    def __init__(self) -> None:
        self.said: list[str] = []

    def info(self, event: str, **_: object) -> None:
        self.said.append(event)


async def echo(stream: trio.SocketStream) -> None:
    async for piece in stream:
        await stream.send_all(piece)


@asynccontextmanager
async def relayed(folder: Path, most: int) -> AsyncIterator[tuple[int, Lines]]:
    """A port that leads to an echo, for so many clients."""
    inside, logger = trio.socket.socket(trio.socket.AF_UNIX), Lines()
    await inside.bind(str(folder / "s"))
    inside.listen()
    made: Any = Relay(folder / "s", most, None, logger)  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, echo, [trio.SocketListener(inside)])
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(made.serve, listeners)
        with trio.fail_after(PATIENCE):
            yield listeners[0].socket.getsockname()[1], logger
        nursery.cancel_scope.cancel()


async def test_silent_clients_of_flight_make_room(tmp_path: Path) -> None:
    """Attack T-HTTP-01: silent connections to the address of Flight.

    Defence: half of `flight.connections` may be without a request, for at most 10 s; the oldest are closed first.
    """
    async with relayed(tmp_path, 4) as (port, _), AsyncExitStack() as stack:
        silent = [await stack.enter_async_context(await trio.open_tcp_stream("127.0.0.1", port)) for _ in range(10)]
        speaks = await stack.enter_async_context(await trio.open_tcp_stream("127.0.0.1", port))
        for words in (b"first", b"second"):
            await speaks.send_all(words)
            assert await speaks.receive_some() == words
        assert await silent[0].receive_some() == b"", "closed for a newcomer"


async def test_a_client_of_flight_that_says_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "HANDSHAKE_SECONDS", 0.05)
    async with relayed(tmp_path, 4) as (port, logger), await trio.open_tcp_stream("127.0.0.1", port) as silent:
        assert await silent.receive_some() == b""
        assert logger.said == ["a client of Flight is left: it said nothing"]

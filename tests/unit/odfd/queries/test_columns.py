"""What queries keep of logs and folds, and cuts of shards."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from engines.query.views import SliceView
from odfd.control import wire
from odfd.queries import log_columns, sharded_cuts
from odfd.queries.cuts import Cut
from odfd.queries.folds import FoldStore
from odfd.queries.log_columns import LogColumns, LogColumnsCache
from worlds.chains import linked

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
    """What a query's process leaves may be anything."""
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

"""Columns of logs are described once for each cut, and never by another history's blocks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from chain.data.arrow_schema import from_arrow
from chain.ids import DatasetId
from chain.instant import Instant
from chain.model.events import DatasetKind, Seed, SetDataSchema, SetInfo, SetVocab
from chain.state import ChainState
from chain.store.base import Append, Head, Rewrite
from chain.store.database import open_database
from chain.store.objects import DiskObjects
from chain.store.sqlite import SqliteChain, SqliteChains
from odfd.queries import log_columns
from odfd.queries.cuts import Cut
from odfd.queries.log_columns import LogColumns, LogColumnsCache
from worlds.chains import linked

DATASET = DatasetId.from_public_key(b"d" * 32)
SEED = Seed(dataset_id=DATASET, dataset_kind=DatasetKind.ROOT)
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
    made.commit([Append(dataset=DATASET, expected=None, blocks=linked(EVENTS, Instant(0)), objects=())])
    yield made
    database.close()


def cut(chain: SqliteChain, size: int) -> Cut:
    return Cut(size=size, block=chain.block_at(size - 1).hash)


def columns(described: LogColumns | ChainState) -> list[str]:
    assert isinstance(described, LogColumns)
    return pa.ipc.read_schema(pa.py_buffer(described.schema)).names


def test_each_cut_has_its_columns(chains: SqliteChains) -> None:
    cache, chain = LogColumnsCache(), chains.chain(DATASET)
    for _ in range(2):
        assert isinstance(cache.at(chain, cut(chain, 2)), ChainState), "no columns yet"
        old, new = cache.at(chain, cut(chain, 4)), cache.at(chain, cut(chain, 5))
        assert (columns(old), columns(new)) == (["a"], ["a", "b"])
        assert isinstance(old, LogColumns)
        assert isinstance(new, LogColumns)
        assert (old.mixed, new.mixed) == (False, True)
        assert old.system == ("n", "op", "system_time")


def test_a_known_cut_decodes_no_state(chains: SqliteChains, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, chain = LogColumnsCache(), chains.chain(DATASET)
    found = cache.at(chain, cut(chain, 5))
    monkeypatch.setattr(log_columns, "load_state", lambda *_: pytest.fail("it is known"))
    assert cache.at(chain, cut(chain, 5)) is found


def test_what_a_rewrite_mixes_in_is_not_kept(chains: SqliteChains, monkeypatch: pytest.MonkeyPatch) -> None:
    """The chain gets another history while it is read for a cut, and its first one again."""
    cache, chain, load = LogColumnsCache(), chains.chain(DATASET), log_columns.load_state
    first = linked(EVENTS, Instant(0))
    other = linked(
        (*EVENTS[:2], SetDataSchema(schema=from_arrow(OTHER)), *EVENTS[3:4], SetInfo(description="y")), Instant(0)
    )

    def rewritten(blocks: Any) -> None:
        head = chain.head()
        assert head is not None
        chains.rewrite(
            Rewrite(dataset=DATASET, expected=Head(head.hash, head.sequence_number), keep=2, blocks=blocks[2:])
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
    cache, chain = LogColumnsCache(), chains.chain(DATASET)
    for _ in range(2):
        assert columns(cache.at(chain, cut(chain, 5))) == ["a", "b"]

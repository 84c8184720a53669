"""A second look at a snapshot that is as it was moves the watermark, once: tables show what was there."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from chain import instant
from chain.ids import DatasetId
from chain.model.events import AddData, DatasetKind, Seed, SetInfo, SetPollingSource
from chain.model.source import FetchFilesGlob, FetchStep, FetchUrl, FromPath, MergeLedger, MergeSnapshot, ReadCsv
from odfd.ingest.driver import Ingested, NothingNew, pull_root
from worlds.fake_engine import FakeEngine

DATASET = DatasetId.from_public_key(bytes(32))


class Snapshots(FakeEngine):
    """Takes snapshots for ledgers, as far as rows only come."""

    async def ingest(self, request: Any, *more: Any) -> Any:
        assert isinstance(request.merge, MergeSnapshot)
        return await super().ingest(msgspec.structs.replace(request, merge=MergeLedger(primary_key=("city",))), *more)


@pytest.fixture
def watching(bench: Any) -> Callable[..., Any]:
    """The bench with a root that looks at ``cities.csv``, which says no times unless ``columns`` say so."""
    path = bench.folder / "source" / "cities.csv"

    def write(*rows: str, head: str = "city,population") -> None:
        path.write_text("\n".join([head, *rows, ""]))
        os.utime(path, (bench.clock // 10**9, bench.clock // 10**9))

    def make(fetch: FetchStep | None = None, columns: str = "city STRING, population BIGINT", merge: Any = None) -> Any:
        bench.engine = Snapshots() if merge is None else FakeEngine()
        source = SetPollingSource(
            fetch=fetch or FetchUrl(url=path.as_uri()), read=ReadCsv(header=True, ddl_schema=(columns,)),
            merge=merge or MergeSnapshot(primary_key=("city",)),
        )  # fmt: skip
        bench.append(None, [Seed(dataset_id=DATASET, dataset_kind=DatasetKind.ROOT), source])
        return bench, write

    return make


def marks(bench: Any) -> list[tuple[bool, int | None]]:
    """(whether it has rows, watermark) of all blocks of data."""
    return [(each.new_data is not None, each.new_watermark) for each in bench.events() if isinstance(each, AddData)]


async def test_an_unchanged_file_moves_the_watermark_once(watching: Callable[..., Any]) -> None:
    bench, write = watching()
    write("A,1", "B,2")
    await pull_root(bench.deps, DATASET)
    ((_, first),) = marks(bench)
    bench.clock += 60 * instant.SECOND
    again = await pull_root(bench.deps, DATASET)
    assert isinstance(again, Ingested)
    assert (again.blocks, again.rows, again.files) == (1, 0, 0)
    assert [has for has, _ in marks(bench)] == [True, False]
    after = marks(bench)[-1][1]
    assert after > first
    assert bench.events()[-1].new_source_state == bench.events()[-2].new_source_state
    bench.clock += 60 * instant.SECOND
    assert await pull_root(bench.deps, DATASET) == NothingNew(reason="unchanged")
    write("A,1", "B,2", "C,3", "D,4")
    await pull_root(bench.deps, DATASET)
    bench.clock += 60 * instant.SECOND
    await pull_root(bench.deps, DATASET)
    assert [has for has, _ in marks(bench)] == [True, False, True, False]
    assert [mark for _, mark in marks(bench)] == sorted({mark for _, mark in marks(bench)})


async def test_the_same_rows_in_a_newer_file_move_it_too(watching: Callable[..., Any]) -> None:
    bench, write = watching()
    write("A,1", "B,2")
    await pull_root(bench.deps, DATASET)
    bench.clock += 60 * instant.SECOND
    write("A,1", "B,2")
    again = await pull_root(bench.deps, DATASET)
    assert isinstance(again, Ingested)
    assert again.rows == 0
    assert marks(bench)[-1][1] > marks(bench)[0][1]


async def test_who_changed_the_dataset_meanwhile_is_not_spoken_for(watching: Callable[..., Any]) -> None:
    bench, write = watching()
    write("A,1", "B,2")
    await pull_root(bench.deps, DATASET)

    def interfere() -> None:
        bench.before_commit = lambda: None
        bench.append(bench.chains.chain(DATASET).head(), [SetInfo(description="x")], system_time=bench.tick())

    bench.before_commit = interfere
    assert await pull_root(bench.deps, DATASET) == NothingNew(reason="unchanged")
    assert len(marks(bench)) == 1


@pytest.mark.parametrize(
    "rows", [("2023-05-01T00:00:00Z,A,1", "2023-05-02T00:00:00Z,B,2"), ("2023-05-01T00:00:00Z,A,1",)]
)
async def test_times_of_their_own_are_not_spoken_for(rows: tuple[str, ...], watching: Callable[..., Any]) -> None:
    bench, write = watching(columns="event_time TIMESTAMP, city STRING, population BIGINT")
    write(*rows, head="event_time,city,population")
    await pull_root(bench.deps, DATASET)
    assert await pull_root(bench.deps, DATASET) == NothingNew(reason="unchanged")


async def test_names_that_say_times_are_not_spoken_for(watching: Callable[..., Any], tmp_path: Any) -> None:
    named = FromPath(pattern=r"(\d{4}-\d{2}-\d{2})\.csv$", timestamp_format="%Y-%m-%d")
    bench, _ = watching(FetchFilesGlob(path=str(tmp_path / "source" / "*.csv"), event_time=named))
    (tmp_path / "source" / "2020-01-01.csv").write_text("city,population\nA,1\nB,2\n")
    await pull_root(bench.deps, DATASET)
    assert await pull_root(bench.deps, DATASET) == NothingNew(reason="unchanged")


async def test_a_ledger_is_no_snapshot(watching: Callable[..., Any]) -> None:
    bench, write = watching(merge=MergeLedger(primary_key=("city",)))
    write("A,1", "B,2")
    await pull_root(bench.deps, DATASET)
    bench.clock += 60 * instant.SECOND
    assert await pull_root(bench.deps, DATASET) == NothingNew(reason="unchanged")

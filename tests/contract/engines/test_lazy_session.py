"""An engine whose session starts when a request needs it: ingests need none, and a failure harms none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from chain.instant import Instant
from chain.model.source import MergeAppend, ReadCsv, SqlQueryStep, TransformSql
from engines.contract import (
    STARTING,
    EngineProgress,
    IngestBatchRequest,
    SessionState,
    Success,
    TransformRequest,
    Vocab,
)
from engines.errors import SESSION, EngineLost
from engines.provision.warm import WarmEngine
from engines.sandbox.base import PlainProcess
from worlds.eventually import PATIENCE, became

from .test_warm_engine import Bed

pytestmark = pytest.mark.slow


def ingest_of(bench: Any, *, preprocess: bool = False) -> IngestBatchRequest:
    transform = TransformSql(engine="scripted", queries=(SqlQueryStep(query="select 1"),))
    return IngestBatchRequest(
        dataset_id=bench.request().dataset_id,
        system_time=Instant(5),
        vocab=Vocab(),
        read=ReadCsv(),
        preprocess=transform if preprocess else None,
        merge=MergeAppend(),
        source_paths=(bench.file("rows.csv", b"a\n1\n"),),
        next_offset=0,
        new_data_path=str(bench.folder / "rows"),
    )


def joining(bench: Any) -> TransformRequest:
    transform = TransformSql(engine="scripted", queries=(SqlQueryStep(query="join"),))
    return msgspec.structs.replace(bench.request(), transform=transform, transaction_id=None)


def sessions(engine: WarmEngine) -> list[str]:
    return [each.session for each in engine.running()]


@pytest.mark.slow
async def test_an_ingest_starts_none_and_a_transform_starts_it_once(tmp_path: Path, bench: Any) -> None:
    bed = Bed(PlainProcess(), tmp_path)
    engine = bed.engine("lazy")
    async with trio.open_nursery() as nursery:
        await nursery.start(engine.run)
        assert isinstance(await engine.ingest(ingest_of(bench)), Success)
        assert (sessions(engine), (bench.folder / "rows").read_bytes()) == (["stopped"], b"stopped")
        told: list[EngineProgress] = []
        assert isinstance(await engine.transform(joining(bench), told.append), Success)
        assert [each.stage for each in told].count(STARTING) == 1
        assert sessions(engine) == ["ready"]
        await engine.transform(joining(bench))
        nursery.cancel_scope.cancel()
    states = [facts["state"] for name, facts in bed.events if name == "engine-session"]
    assert states == ["stopped", "starting", "ready"]
    assert len(bed.started()) == 1


@pytest.mark.slow
async def test_an_ingest_with_a_query_starts_it_first(tmp_path: Path, bench: Any) -> None:
    engine = Bed(PlainProcess(), tmp_path).engine("lazy")
    async with trio.open_nursery() as nursery:
        await nursery.start(engine.run)
        await engine.ingest(ingest_of(bench, preprocess=True))
        assert (bench.folder / "rows").read_bytes() == b"ready"
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_a_failed_start_is_the_requests_error_and_ingests_go_on(tmp_path: Path, bench: Any) -> None:
    bed = Bed(PlainProcess(), tmp_path)
    engine = bed.engine("broken")
    async with trio.open_nursery() as nursery:
        await nursery.start(engine.run)
        for _ in range(2):
            with pytest.raises(EngineLost, match="no room for the heap") as lost:
                await engine.transform(joining(bench))
            assert (lost.value.rule, lost.value.at_work) == (SESSION, False)
            assert isinstance(await engine.ingest(ingest_of(bench)), Success)
        assert sessions(engine) == ["failed"]
        await engine.warm()  # nobody waits for it: the next request tells
        nursery.cancel_scope.cancel()
    assert len(bed.started()) == 1


@pytest.mark.slow
async def test_a_node_that_will_need_it_starts_it_before(tmp_path: Path, bench: Any) -> None:
    engine = Bed(PlainProcess(), tmp_path).engine("lazy")
    async with trio.open_nursery() as nursery:
        await nursery.start(engine.run)
        await engine.warm()
        assert sessions(engine) == ["ready"]
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_a_session_that_ingests_do_not_use_goes_and_they_stay(tmp_path: Path, bench: Any) -> None:
    """It holds a third of a gigabyte: a process without it takes its place."""
    bed = Bed(PlainProcess(), tmp_path)
    engine = bed.engine("lazy", idle=0.5)
    async with trio.open_nursery() as nursery:
        await nursery.start(engine.run)
        await engine.transform(joining(bench))

        async def ingest_until_it_goes() -> None:
            while "engine-leaving" not in bed.names():
                await engine.ingest(ingest_of(bench))

        with trio.fail_after(PATIENCE):
            await ingest_until_it_goes()
        await became(lambda: "engine-exited" in bed.names())
        await engine.ingest(ingest_of(bench))
        assert sessions(engine) == ["stopped"]
        nursery.cancel_scope.cancel()
    [why] = {facts["why"] for name, facts in bed.events if name == "engine-leaving"}
    assert why == "what it started for a query is idle"


async def test_an_engine_is_asked_what_it_has_started(bench: Any) -> None:
    engine = bench.engine()
    assert await engine.session(starts=False) == SessionState(state="stopped")
    assert await engine.session(starts=True) == SessionState(state="ready")

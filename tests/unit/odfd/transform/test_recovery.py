"""State that was lost is made again from the chains, or it is said why it cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from chain.errors import Invalid, NotFound
from chain.ids import DatasetId
from chain.model.events import ExecuteTransform
from engines.contract import OnProgress, Success, TransformOutcome, TransformRequest, ignore_progress
from engines.spark.state.checkpoint import VERSION, StateCheckpoint, decode_checkpoint, encode_checkpoint
from odfd.transform.driver import Committed, run_transform
from odfd.transform.progress import TransformStep
from odfd.transform.recovery import restore_state, run_recovering
from worlds.fake_engine import FakeEngine

ROOT = DatasetId.from_public_key(b"r" * 32)
DERIVED = DatasetId.from_public_key(b"d" * 32)


class Counting(FakeEngine):
    """Its state counts all rows so far, so that each checkpoint needs the one before. ``step``: how it counts."""

    step = 1

    async def transform(self, request: TransformRequest, on_progress: OnProgress = ignore_progress) -> TransformOutcome:
        answer = await super().transform(request, on_progress)
        if isinstance(answer, Success):
            await trio.to_thread.run_sync(self._count, request, answer)
        return answer

    def _count(self, request: TransformRequest, answer: Success) -> None:
        before, interval = 0, answer.new_offset_interval
        if request.prev_checkpoint_path is not None:
            before = decode_checkpoint(Path(request.prev_checkpoint_path).read_bytes()).late.get("x", 0)
        count = before + self.step * (0 if interval is None else interval.end - interval.start + 1)
        state = StateCheckpoint(v=VERSION, transform="t", mode="log", inputs=(), late={"x": count}, untimed={})
        Path(request.new_checkpoint_path).write_bytes(encode_checkpoint(state))


@pytest.fixture
def counted(world: Any, tmp_path: Path) -> Any:
    return type(world)(tmp_path / "counted", Counting())


async def grown(world: Any) -> Any:
    """Three transactions, and rows that wait; returns the name of the checkpoint."""
    world.found()
    for rows in ([1, 2], [3], [4, 5, 6]):
        world.add_rows(rows, watermark=rows[-1] * 1000)
        done = await run_transform(world.deps, DERIVED)
        assert isinstance(done, Committed)
    world.add_rows([7], watermark=7000)
    return done.event.new_checkpoint.physical_hash


def state_of(world: Any) -> dict[str, int]:
    event = world.chains.chain(DERIVED).last_of(("ExecuteTransform",), None).event
    assert isinstance(event, ExecuteTransform)
    return decode_checkpoint(world.objects.read(event.new_checkpoint.physical_hash)).late


async def test_a_lost_checkpoint_is_made_again_and_the_transform_goes_on(counted: Any) -> None:
    lost = await grown(counted)
    counted.objects.remove(lost)
    with pytest.raises(NotFound):
        await run_transform(counted.deps, DERIVED)
    steps: list[TransformStep] = []
    done = await run_recovering(counted.deps, DERIVED, steps.append)
    assert isinstance(done, Committed)
    assert done.records == 1
    assert counted.objects.has(lost)
    assert state_of(counted) == {"x": 7}
    assert list(dict.fromkeys((each.repeat, each.repeats) for each in steps)) == [(1, 3), (2, 3), (3, 3), (0, 0)]


async def test_a_damaged_checkpoint_is_made_again(counted: Any) -> None:
    lost = await grown(counted)
    counted.objects.path(lost).write_bytes(b"{}")
    assert await restore_state(counted.deps, DERIVED)
    assert not await restore_state(counted.deps, DERIVED)
    assert isinstance(await run_transform(counted.deps, DERIVED), Committed)
    assert state_of(counted) == {"x": 7}


async def test_nothing_is_done_when_nothing_is_lost(counted: Any) -> None:
    await grown(counted)
    head = counted.chains.chain(DERIVED).head()
    assert not await restore_state(counted.deps, DERIVED)
    assert counted.chains.chain(DERIVED).head() == head


async def test_another_engine_s_state_is_not_taken_for_it(counted: Any) -> None:
    lost = await grown(counted)
    counted.objects.remove(lost)
    counted.engine.step = 2
    with pytest.raises(Invalid, match="its history makes another one") as fault:
        await run_recovering(counted.deps, DERIVED)
    assert fault.value.rule == "checkpoint-lost"
    assert not counted.objects.has(lost)


async def test_what_cannot_be_made_again_says_why(counted: Any) -> None:
    lost = await grown(counted)
    counted.objects.remove(lost)
    counted.objects.remove(counted.chains.chain(ROOT).last_of(("AddData",), None).event.new_data.physical_hash)
    counted.objects.remove(counted.chains.chain(ROOT).block_at(2).event.new_data.physical_hash)
    with pytest.raises(Invalid, match="cannot be made again: a slice of an input is not here"):
        await run_recovering(counted.deps, DERIVED)

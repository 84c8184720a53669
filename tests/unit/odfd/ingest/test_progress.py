"""What a fetch has written is reported while it writes."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from chain.errors import Remote
from odfd.ingest.progress import LOOK_SECONDS, IngestStep, watch

FETCHING = IngestStep(file="its source", phase="fetching", rows=7)


async def test_bytes_that_came_are_reported_when_they_are_more(tmp_path: Path, autojump_clock: object) -> None:
    steps: list[IngestStep] = []
    came = [trio.Event(), trio.Event()]

    def report(step: IngestStep) -> None:
        steps.append(step)
        came[len(steps) - 1].set()

    async with watch(tmp_path, FETCHING, report):
        (tmp_path / "below").mkdir()
        (tmp_path / "a").write_bytes(b"12345")
        await came[0].wait()
        (tmp_path / "b").write_bytes(b"123")
        await came[1].wait()
    (tmp_path / "c").write_bytes(b"1")
    await trio.sleep(2 * LOOK_SECONDS)
    assert [(each.phase, each.rows, each.bytes_done, each.bytes_total) for each in steps] == [
        ("fetching", 7, 5, None),
        ("fetching", 7, 8, None),
    ]


async def test_a_fault_of_the_fetch_is_raised_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(Remote, match="gone"):
        async with watch(tmp_path, FETCHING, lambda _: None):
            raise Remote("gone", rule="source")


async def test_a_folder_that_goes_ends_nothing(tmp_path: Path, autojump_clock: object) -> None:
    async with watch(tmp_path / "none", FETCHING, lambda _: None):
        await trio.sleep(5 * LOOK_SECONDS)

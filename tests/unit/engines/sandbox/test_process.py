"""A process ends with all that it started, however it ends itself."""

from __future__ import annotations

import os

import pytest
import trio

from engines.sandbox.base import Job, PlainProcess
from engines.sandbox.process import ConfinedProcess, start
from worlds.eventually import PATIENCE


async def started(command: str) -> tuple[ConfinedProcess, int]:
    """A shell, and the number of the process that it left in the background and printed."""
    job = Job(argv=("sh", "-c", command), env=dict(os.environ), mounts=())
    process = start(PlainProcess(), job)
    return process, int(await process.stdout.receive_some())


async def has_ended(process: int) -> None:
    try:
        watched = os.pidfd_open(process)
    except ProcessLookupError:
        return
    try:
        await trio.lowlevel.wait_readable(watched)
    finally:
        os.close(watched)


@pytest.mark.parametrize("last", ["exit 3", "kill -TERM $$"])
async def test_a_process_that_ends_by_itself_leaves_none_behind(last: str) -> None:
    """It was asked to end and did at once, before its group was killed: its children then stayed."""
    process, child = await started(f"sleep 1000 >/dev/null 2>&1 & echo $!; {last}")
    with trio.fail_after(PATIENCE):
        code = await process.wait()
        await has_ended(child)
    assert code in (3, -15)
    assert process.returncode == code
    assert await process.stop(0) == code


async def test_a_process_that_is_stopped_leaves_none_behind() -> None:
    process, child = await started("sleep 1000 & echo $!; wait")
    with trio.fail_after(PATIENCE):
        await process.stop(PATIENCE)
        await has_ended(child)

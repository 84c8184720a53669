"""Reports the progress of an ingest to people: the file that is fetched, computed or committed."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, TypeAlias

import msgspec
import trio

from engines.contract import STARTING, EngineProgress, OnProgress
from odfd.errors import sole_faults

_PHASES: Final = {STARTING: "starting the engine for", "writing": "writing what is new of"}
"""Text before the file's name for some stages of an engine; other stages are shown as computing."""
LOOK_SECONDS: Final = 1.0
"""Seconds between two looks at the size of a fetch."""


class IngestStep(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a long pull."""

    file: str
    phase: str
    """``fetching``, ``fetched``, ``reading``, ``computing``, ``committed``, or a text of ``_PHASES``."""
    rows: int = 0
    """Rows that this call committed so far."""
    bytes_done: int | None = None
    """Bytes done in this phase; ``None``: not measured."""
    bytes_total: int | None = None


Report: TypeAlias = Callable[[IngestStep], None]


def quiet(_: IngestStep) -> None:
    """Ignores progress reports."""


@asynccontextmanager
async def watch(folder: Path, fetching: IngestStep, report: Report) -> AsyncIterator[None]:
    """Reports once a second, while the block runs, how many bytes a fetch has written into its folder."""

    async def report_size() -> None:
        shown = 0
        while True:
            await trio.sleep_until(trio.current_time() + LOOK_SECONDS)
            size = await trio.to_thread.run_sync(size_of, folder)
            if size > shown:
                shown = size
                report(msgspec.structs.replace(fetching, bytes_done=size))

    with sole_faults():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(report_size)
            yield
            nursery.cancel_scope.cancel()


def size_of(folder: Path) -> int:
    """Returns the bytes of the files directly in a folder. Blocking."""
    size = 0
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                size += entry.stat(follow_symlinks=False).st_size if entry.is_file(follow_symlinks=False) else 0
    except OSError:  # a file was renamed or removed: the next look sees it
        return size
    return size


def by_engine(computing: IngestStep, report: Report) -> OnProgress:
    """Returns a callback that reports an engine's progress whenever it changes: it reads files before it computes."""
    last = computing

    def show(progress: EngineProgress) -> None:
        nonlocal last
        step = computing
        if progress.stage in _PHASES:  # also while nothing is read, since the engine starts for that
            step = msgspec.structs.replace(computing, phase=_PHASES[progress.stage])
        elif progress.bytes_read is not None:
            step = msgspec.structs.replace(
                computing, phase="reading", bytes_done=progress.bytes_read, bytes_total=progress.bytes_total
            )
        if step != last:
            last = step
            report(step)

    return show

"""Tells people how far an ingest is: what is fetched, what is computed, what is committed."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, TypeAlias

import msgspec
import trio

from engines.progress import STARTING, OnProgress, Progress
from odfd.errors import sole_faults

_PHASES: Final = {STARTING: "starting the engine for", "writing": "writing what is new of"}
"""Stages of an engine in words before the name of a file; the others are told as computing."""
LOOK_SECONDS: Final = 1.0
"""Between two looks at what a fetch has written."""


class IngestStep(msgspec.Struct, frozen=True, kw_only=True):
    """How far a long pull is."""

    file: str
    phase: str
    """``fetching``, ``fetched``, ``reading``, ``computing``, ``committed``."""
    rows: int = 0
    """Committed by this call so far."""
    bytes_done: int | None = None
    """Of this phase; ``None``: it is not measured."""
    bytes_total: int | None = None


Report: TypeAlias = Callable[[IngestStep], None]


def quiet(_: IngestStep) -> None:
    """Ignores progress reports."""


@asynccontextmanager
async def watched(folder: Path, fetching: IngestStep, report: Report) -> AsyncIterator[None]:
    """While the block lasts, reports once a second how many bytes a fetch has written into its folder."""

    async def watch() -> None:
        shown = 0
        while True:
            await trio.sleep_until(trio.current_time() + LOOK_SECONDS)
            size = await trio.to_thread.run_sync(size_of, folder)
            if size > shown:
                shown = size
                report(msgspec.structs.replace(fetching, bytes_done=size))

    with sole_faults():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            yield
            nursery.cancel_scope.cancel()


def size_of(folder: Path) -> int:
    """Returns the bytes of the files of a folder, without those below it. Blocking."""
    size = 0
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                size += entry.stat(follow_symlinks=False).st_size if entry.is_file(follow_symlinks=False) else 0
    except OSError:  # what was there is renamed or gone: the next look sees it
        return size
    return size


def by_engine(computing: IngestStep, report: Report) -> OnProgress:
    """Reports what an engine says of its work, when it says something new: it reads files before it computes."""
    last = computing

    def show(progress: Progress) -> None:
        nonlocal last
        step = computing
        if progress.bytes_read is not None:
            step = msgspec.structs.replace(
                computing, phase="reading", bytes_done=progress.bytes_read, bytes_total=progress.bytes_total
            )
        elif progress.stage in _PHASES:
            step = msgspec.structs.replace(computing, phase=_PHASES[progress.stage])
        if step != last:
            last = step
            report(step)

    return show

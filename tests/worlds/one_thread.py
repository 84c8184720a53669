"""Runs a simulation of several processes in one thread, where no two of them are ever at work at once.

A thread for each blocking call, and the wait for it, took as long as the work itself. Blocks, footers and slices whose
bytes were decoded or hashed before are not again: what comes out depends on the bytes alone.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar, TypeVarTuple

import pytest
import trio
from cachetools import LRUCache, cached
from trio.abc import Clock

from chain.codec import flat
from chain.data import parquet
from chain.data.footer import parse_footer
from engines import output_check
from worlds import fake_engine

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
_REMEMBERED: Final = 4096
"""Results that are kept of each function."""


class IdleClock(Clock):
    """A clock that only moves while all tasks sleep, and then at once to when the first of them wakes."""

    def __init__(self) -> None:
        self._now = 0.0

    def start_clock(self) -> None:
        """Starts at zero."""

    def current_time(self) -> float:
        return self._now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        if deadline == float("inf"):
            return deadline
        self._now = max(self._now, deadline)
        return 0.0


def ran(function: Callable[[*Ts], Awaitable[T]], *args: *Ts, clock: Clock | None = None) -> T:
    """Runs a function of one process, also amid that of another one, which waits for it."""
    run = functools.partial(trio.run, function, *args, clock=clock)
    if not trio.lowlevel.in_trio_run():  # type: ignore[attr-defined]
        return run()
    with ThreadPoolExecutor(1) as other:
        return other.submit(run).result()


def _content(path: Path, read: object) -> tuple[bytes, str]:
    return path.read_bytes(), repr(read)


@contextmanager
def one_thread() -> Iterator[None]:
    """Until it ends, blocking calls are made where they stand, and equal bytes are decoded and hashed once."""

    async def called(function: Callable[..., T], *args: Any, **_: Any) -> T:
        return function(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trio.to_thread, "run_sync", called)
        patch.setattr(flat, "decode_noting", functools.lru_cache(_REMEMBERED)(flat.decode_noting))
        patch.setattr(parquet, "parse_footer", functools.lru_cache(_REMEMBERED)(parse_footer))
        hashes = cached(LRUCache(_REMEMBERED), Path.read_bytes)(output_check.both_hashes)
        patch.setattr(output_check, "both_hashes", hashes)
        for reader in ("_csv", "_ndjson"):
            patch.setattr(fake_engine, reader, cached(LRUCache(_REMEMBERED), _content)(getattr(fake_engine, reader)))
        yield

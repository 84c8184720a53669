"""Asks a source in a process of its own, which has its own memory, and is ended with its time."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import msgspec
import trio

from chain.errors import Environment, Remote

_SAID: Final = 300
_T = TypeVar("_T")


class ProcessApart(msgspec.Struct, frozen=True, kw_only=True):
    """``main`` is the entry of a module; ``request`` comes on its standard input, where nobody else sees secrets."""

    main: Callable[[], int]
    request: bytes
    told: Path
    """Where it writes its answer."""
    shown: str
    """The source, for messages."""
    rule: str

    async def told_within(self, seconds: float, fewer: str) -> bytes:
        """The bytes of the answer. Raises Remote when none came in time, Environment."""
        done = None
        with trio.move_on_after(seconds):
            done = await trio.run_process(
                [sys.executable, "-m", self.main.__module__],
                stdin=self.request,
                capture_stdout=True,
                capture_stderr=True,
                check=False,
                env={"PYTHONPATH": ":".join(part for part in sys.path if part), "TZ": "UTC"},
            )
        if done is None:
            raise Remote(
                f"{self.shown}: no rows came in {seconds:g} s",
                rule=self.rule,
                hint=f"try again later, {fewer}, or wait longer: ingest.fetch-seconds",
            )
        try:
            return await trio.to_thread.run_sync(self.told.read_bytes)
        except OSError as error:
            words = done.stderr.decode("utf-8", "replace").strip()[-_SAID:]
            raise Environment(
                f"{self.shown}: the process that asks it ended with {done.returncode}: {words}", rule=self.rule
            ) from error

    def decoded(self, told: bytes, kind: type[_T]) -> _T:
        """Raises Environment."""
        try:
            return msgspec.json.decode(told, type=kind)
        except msgspec.DecodeError as error:
            raise Environment(f"{self.shown}: the process that asks it told nothing whole", rule=self.rule) from error

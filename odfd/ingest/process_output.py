"""Writes a process's output to a file under a time limit, and keeps the end of its standard error."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, NamedTuple

import trio

from engines.sandbox.process import ConfinedProcess
from odfd.errors import sole_fault
from odfd.ingest.file_writer import FileWriter
from odfd.ingest.settings import IngestSettings

MAX_SAID: Final = 500
"""Bytes of a process's standard error that are kept for messages."""
Beside = Callable[[], Awaitable[None]]


class ProcessEnd(NamedTuple):
    """The exit code of a process, and its last words."""

    code: int
    said: str
    """The end of its standard error, as text."""


async def nothing() -> None:
    """Does nothing; the default for tasks beside a process."""


class OutputFile(NamedTuple):
    """A file that is written from a process's standard output."""

    target: Path
    name: str
    """Name of the content, in messages."""
    seconds: float
    """Seconds that the process may take altogether."""

    async def take(
        self, process: ConfinedProcess, settings: IngestSettings, *, feed: Beside = nothing, watch: Beside = nothing
    ) -> ProcessEnd:
        """Writes the output. The process and all that it started are stopped, however this ends.

        ``feed`` has to end too; ``watch`` is cancelled when the output ends. Raises their faults, Refused for too much
        output, TooSlowError.
        """
        said = bytearray()
        try:
            with trio.fail_after(self.seconds):
                async with trio.open_nursery() as watching:
                    watching.start_soon(watch)
                    async with trio.open_nursery() as streams:
                        streams.start_soon(feed)
                        streams.start_soon(_listen, process, said)
                        streams.start_soon(self._write, process, settings)
                    watching.cancel_scope.cancel()
                code = await process.wait()
        except BaseExceptionGroup as error:
            raise sole_fault(error) or error from None
        finally:
            await process.stop(0)
        return ProcessEnd(code, bytes(said).decode("utf-8", "replace").strip())

    async def _write(self, process: ConfinedProcess, settings: IngestSettings) -> None:
        with FileWriter(self.target, self.name, settings) as out:
            async for block in process.stdout:
                await trio.to_thread.run_sync(out.write, bytes(block))


async def _listen(process: ConfinedProcess, said: bytearray) -> None:
    async for block in process.stderr:
        said += block
        del said[:-MAX_SAID]

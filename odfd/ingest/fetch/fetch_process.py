"""Reads a source in a separate process with its own memory, and ends the process after a time limit."""

from __future__ import annotations

import os
import sys
from typing import Final, NamedTuple

import msgspec
import trio

from chain import errors
from chain.errors import Environment, Remote
from odfd.ingest.source_process import R, SourceJob

_SAID: Final = 300
_CERTIFICATES: Final = ("SSL_CERT_FILE", "SSL_CERT_DIR")
_FAULTS: Final = {
    each.__name__: each for each in (errors.Invalid, errors.NotFound, errors.Refused, errors.Remote, errors.Environment)
}


class TimeLimit(NamedTuple):
    """The time limit of an answer, and the advice for a smaller request if it is exceeded."""

    seconds: float
    fewer: str


async def ask(program: str, job: SourceJob, kind: type[R], shown: str, time: TimeLimit) -> R:
    """Runs the module ``program`` as a process and returns its answer. ``shown``: the source's name in messages.

    Raises the fault in the answer, Remote when no answer came in time, Environment.
    """
    rule = kind().rule
    done = None
    with trio.move_on_after(time.seconds):
        done = await trio.run_process(
            [sys.executable, "-m", program],
            stdin=msgspec.json.encode(job),
            capture_stdout=True,
            capture_stderr=True,
            check=False,
            # Nothing else of the daemon's environment, which may hold credentials that clients take from it.
            env={"PYTHONPATH": ":".join(part for part in sys.path if part), "TZ": "UTC", **authorities()},
        )
    if done is None:
        raise Remote(
            f"{shown}: no rows came in {time.seconds:g} s",
            rule=rule,
            hint=f"try again later, {time.fewer}, or wait longer: ingest.fetch-seconds",
        )
    try:
        result = msgspec.json.decode(await trio.to_thread.run_sync(job.answer.read_bytes), type=kind)
    except OSError as error:
        words = done.stderr.decode("utf-8", "replace").strip()[-_SAID:]
        raise Environment(
            f"{shown}: the process that asks it ended with {done.returncode}: {words}", rule=rule
        ) from error
    except msgspec.DecodeError as error:
        raise Environment(f"{shown}: the process that asks it wrote half an answer", rule=rule) from error
    return without_fault(result, shown)


def authorities() -> dict[str, str]:
    """Returns the environment variables that name trusted TLS authorities; none: those of this machine are used."""
    return {name: os.environ[name] for name in _CERTIFICATES if name in os.environ}


def without_fault(result: R, shown: str) -> R:
    """Returns ``result``. Raises the fault that it describes, if any."""
    if result.fault:
        raise _FAULTS.get(result.fault, Environment)(f"{shown}: {result.message}", rule=result.rule, hint=result.hint)
    return result

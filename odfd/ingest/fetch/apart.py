"""Asks a source in a process of its own, which has its own memory, and is ended with its time."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec
import trio

from chain import errors
from chain.errors import Environment, Refused, Remote
from odfd.ingest.apart import R, SourceJob

_SAID: Final = 300
_CERTIFICATES: Final = ("SSL_CERT_FILE", "SSL_CERT_DIR")
_FAULTS: Final = {
    each.__name__: each for each in (errors.Invalid, errors.NotFound, errors.Refused, errors.Remote, errors.Environment)
}


class TimeLimit(NamedTuple):
    """How long an answer may take, and how to ask for less than what takes longer."""

    seconds: float
    fewer: str


async def ask(main: Callable[[], int], job: SourceJob, kind: type[R], shown: str, time: TimeLimit) -> R:
    """The answer of the process whose entry is ``main`` of a module. ``shown``: the source, for messages.

    Raises the fault that the process tells of, Remote when no answer came in time, Environment.
    """
    rule = kind().rule
    done = None
    with trio.move_on_after(time.seconds):
        done = await trio.run_process(
            [sys.executable, "-m", main.__module__],
            stdin=msgspec.json.encode(job),
            capture_stdout=True,
            capture_stderr=True,
            check=False,
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
    """Returns what the environment says of whom to trust for TLS: nothing, for the authorities of this machine."""
    return {name: os.environ[name] for name in _CERTIFICATES if name in os.environ}


def without_fault(result: R, shown: str) -> R:
    """The result. Raises the fault that it tells of."""
    if result.fault:
        raise _FAULTS.get(result.fault, Environment)(f"{shown}: {result.message}", rule=result.rule, hint=result.hint)
    return result


def check_client(module: str, kind: str, extra: str) -> None:
    """Raises Refused where the client that sources of a kind need is not installed."""
    if importlib.util.find_spec(module) is None:
        raise Refused(
            f"sources of kind {kind} need a client, {module}, which is not installed",
            rule=f"{extra}-extra",
            hint=f"install it beside odfd: pip install 'odfd[{extra}]'",
        )

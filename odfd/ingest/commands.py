"""Runs the commands of ``prepare: Pipe``: a file is their input, and their output is the prepared file.

They run in a sandbox over the programs of this machine (``engines.sandbox``): without a network, without files but
those of /usr, in bounded memory and time. ``ingest.pipe`` of the settings may give them the rights of the daemon's user
instead, or refuse all. Commands in manifests of other nodes never run.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import trio

from chain.errors import Environment, Invalid, Refused
from engines.errors import EngineLost
from engines.sandbox.base import Job, PlainProcess, Sandbox, SandboxLevel
from engines.sandbox.cgroups import Groups
from engines.sandbox.process import ConfinedProcess, start
from odfd.ingest.process_output import OutputFile, ProcessEnd
from odfd.ingest.settings import CHUNK, IngestSettings

_PROCESSES: Final = 64
"""Processes of a command at once, threads included, if they can be counted."""
_PATH: Final = "/usr/local/bin:/usr/bin:/bin"
"""Search path for programs inside of a sandbox."""
_WRAP: Final = ("/usr/bin/env", "-u", "PYTHONPATH")
"""Unsets PYTHONPATH, so that a command in Python does not load our own packages."""
_ALLOW: Final = 'ingest.pipe = "user" of the settings runs it as the daemon\'s user'


def check_command(command: Sequence[str], settings: IngestSettings) -> None:
    """Checks a command as far as possible without trying a sandbox. Raises Refused, Invalid."""
    if not command:
        raise Invalid("prepare: Pipe names no command", rule="prepare-pipe", hint="command: [program, argument, …]")
    if settings.pipe == "never":
        raise Refused(
            f"prepare: Pipe would run {' '.join(command)!r}, and no commands are run here",
            rule="prepare-pipe",
            hint='ingest.pipe = "sandbox" of the settings runs them without a network and without files',
        )
    if settings.pipe == "sandbox" and shutil.which("bwrap") is None:
        raise _no_sandbox(command, "bubblewrap (bwrap) is not installed")


async def run_command(path: Path, command: Sequence[str], target: Path, settings: IngestSettings) -> None:
    """Runs a command on a file and writes its output to ``target``. All its processes end, however this ends.

    Raises Refused (not allowed, too much time or output), Invalid (it failed), Environment (it cannot be started).
    """
    check_command(command, settings)
    sandbox, groups, environment = await _confinement(command, settings)
    if shutil.which(command[0], path=environment.get("PATH", _PATH)) is None:
        where = environment.get("PATH", _PATH)
        raise Environment(f"cannot run {command[0]}: no such program in {where}", rule="prepare-pipe")
    job = Job(
        argv=(*_WRAP, *command),
        env={**environment, **settings.variables},
        mounts=(),
        memory=settings.pipe_memory,
        total=settings.pipe_memory,
        processes=_PROCESSES if sandbox.level is not SandboxLevel.NONE else None,
    )
    try:
        process = start(sandbox, job, groups)
    except EngineLost as error:
        raise Environment(f"cannot run {command[0]}: {error}", rule="prepare-pipe") from error
    output = OutputFile(target, f"what {command[0]} gave", settings.pipe_timeout)
    try:
        ended = await output.take(process, settings, feed=partial(_feed, path, process))
    except trio.TooSlowError as error:
        raise Refused(
            f"{command[0]} ran over {settings.pipe_timeout:g} s",
            rule="prepare-pipe",
            hint="raise ingest.pipe-seconds of the settings, if it needs longer",
        ) from error
    if ended.code:
        raise _failure(command[0], ended, settings)


async def _confinement(
    command: Sequence[str], settings: IngestSettings
) -> tuple[Sandbox, Groups | None, Mapping[str, str]]:
    """Returns the sandbox, its groups and the environment for a command. Raises Refused if no sandbox works."""
    if settings.pipe == "user":
        return PlainProcess(), None, settings.environment
    try:
        choice = await settings.sandbox.choice()
    except Refused as fault:
        raise _no_sandbox(command, fault.message) from fault
    return choice.sandbox, choice.groups, {"PATH": _PATH, "LC_ALL": "C.UTF-8"}


def _no_sandbox(command: Sequence[str], why: str) -> Refused:
    return Refused(
        f"prepare: Pipe cannot run {' '.join(command)!r} in a sandbox: {why}",
        rule="prepare-pipe",
        hint=f"install bubblewrap; or, if you trust all who write manifests, {_ALLOW}",
    )


def _failure(name: str, ended: ProcessEnd, settings: IngestSettings) -> Invalid:
    mib = settings.pipe_memory >> 20
    return Invalid(
        f"{name} ended with {ended.code}" + (f": {ended.said}" if ended.said else ""),
        rule="prepare-pipe",
        hint="" if ended.said else f"it may use {mib:,} MiB of memory (ingest.pipe-memory-mib), and has no network",
    )


async def _feed(path: Path, process: ConfinedProcess) -> None:
    """Writes the file to the command's input; a command may end before it has read all."""
    with path.open("rb") as source:
        try:
            while block := await trio.to_thread.run_sync(source.read, CHUNK):
                await process.stdin.send_all(block)
        except trio.BrokenResourceError:
            return
    await process.stdin.aclose()

"""``upgrade check``: tells before a start what this program would change in a state directory, with no daemon."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from chain.errors import Fault
from odfd import __version__
from odfd.cli.command import Commands, argument
from odfd.cli.commands.node import doctor_text
from odfd.cli.session import Session
from odfd.control import wire
from odfd.errors import ExitCode

if TYPE_CHECKING:
    from odfd.state.upgrade import TableChange

FRESH_SECONDS: Final = 86_400
"""How old the last backup may be before somebody is told to make one."""


commands = Commands()
upgrade = commands.group(
    "upgrade", description="Before a node is started with this version of odfd.", example="check /var/lib/odfd"
)


@upgrade.add(
    "check",
    argument("directory", metavar="DIR", help="the state directory of the node"),
    help="try on a copy whether this version can take over a node's state",
    description="Tell what a start of this version would change in a state directory, tried on a copy of its\n"
    "database, and whether there is a backup to go back to. Nothing is changed; the node may be running.",
    example="/var/lib/odfd",
)
def _check(session: Session, args: argparse.Namespace) -> int:
    directory = Path(args.directory).expanduser().resolve()
    probes = list(look_through(directory, time.time()))
    session.show([msgspec.to_builtins(probe) for probe in probes], lambda _: doctor_text(probes))
    return ExitCode.NO if any(probe.result == "failed" for probe in probes) else ExitCode.OK


def look_through(directory: Path, now: float) -> Iterator[wire.Probe]:
    """``now``: seconds since 1970. Raises NotFound, Environment where there is no database that can be read."""
    from odfd.state.upgrade import table_changes

    changes = table_changes(directory)
    yield wire.Probe(name="version", result="ok", message=f"this is odfd {__version__}")
    yield _of_database(directory, changes)
    yield _of_backup(directory, now)


def _of_database(directory: Path, changes: list[TableChange]) -> wire.Probe:
    from odfd.state.upgrade import has_room_for_copy, try_on_copy

    if not changes:
        return wire.Probe(name="database", result="ok", message="its tables are those of this version")
    told = ", ".join(f"{change.room} {change.here} to {change.known}" for change in changes)
    if any(change.is_newer for change in changes):
        return wire.Probe(
            name="database",
            result="failed",
            message=f"a newer odfd wrote it: {told}",
            hint="start it with the newer version, or restore a backup that this one wrote",
        )
    if not has_room_for_copy(directory):
        return wire.Probe(
            name="database",
            result="warning",
            message=f"a start brings it forward, not tried for want of disk: {told}",
            hint="free twice the size of the database, and check again",
        )
    try:
        try_on_copy(directory)
    except Fault as fault:
        return wire.Probe(name="database", result="failed", message=fault.message, hint=fault.hint)
    message = f"a start brings it forward, as tried on a copy: {told}; older versions do not read it then"
    return wire.Probe(name="database", result="ok", message=message)


def _of_backup(directory: Path, now: float) -> wire.Probe:
    from chain.instant import SECOND, parse
    from odfd.state.backup import last_backup

    found = last_backup(directory)
    hint = "odfctl backup FOLDER, while the old version runs"
    if found is None:
        return wire.Probe(name="backup", result="warning", message="none is known to go back to", hint=hint)
    message = f"the last is of {found.time}, in {found.place}"
    if now - parse(found.time) / SECOND > FRESH_SECONDS:
        return wire.Probe(name="backup", result="warning", message=message, hint=hint)
    return wire.Probe(name="backup", result="ok", message=message)

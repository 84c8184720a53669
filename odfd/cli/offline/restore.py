"""``restore`` makes a verified state directory from a backup; ``upgrade check`` shows what a start would migrate."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from chain.errors import Fault
from odfd import __version__, output
from odfd.cli import formatting
from odfd.cli.command import Commands, argument
from odfd.cli.commands.node import doctor_text
from odfd.cli.progress import Meter
from odfd.cli.session import Session
from odfd.control import wire
from odfd.errors import ExitCode

if TYPE_CHECKING:
    from odfd.runtime.tasks import Report
    from odfd.services.maintenance.restore import Restored
    from odfd.store.directory import StateDirectory

if TYPE_CHECKING:
    from odfd.services.maintenance.upgrade import TableChange

SIGNING = """Its keys sign nothing yet: what they signed after this backup is not in it, and a key that contradicted
itself would be proven to have. Choose one:
  the old node's disk is there   copy its keys/*.journal to {keys} before the start
  it is lost                     start the node and join its network: it asks the validators and witnesses that it
                                 lists what its keys have signed, and continues by itself; odfctl trust sign hastens it
  no node has seen anything      odfctl trust sign --alone
Never run the old node and this one at the same time."""


commands = Commands()


@commands.add(
    "restore",
    argument("backup", metavar="BACKUP", help="the folder that odfctl backup wrote to"),
    argument("directory", metavar="DIR", help="an empty or new folder"),
    argument("--snapshot", metavar="NAME", help="one of BACKUP/snapshots (the newest)"),
    argument("--skip-damaged", action="store_true", help="restore without damaged objects"),
    description="Make a state directory from a backup, without a daemon. Every file and object is hashed, and "
    "database and chains are checked, before DIR appears. Start the node with --state DIR.",
    example="/mnt/backup/alice ./alice",
)
def _restore(session: Session, args: argparse.Namespace) -> None:
    from odfd.runtime.tasks import Report
    from odfd.services.maintenance.restore import choose, restore

    backup, directory = Path(args.backup).expanduser().resolve(), Path(args.directory).expanduser().resolve()
    meter, report = Meter(session, output.error_stream()), Report()
    meter.show(_progress(report, directory))
    try:
        done = restore(choose(backup, args.snapshot), directory, what_is_wrong, report, skip_damaged=args.skip_damaged)
    finally:
        meter.clear()
    session.show(_value(done), lambda _: _text(done))


def what_is_wrong(home: StateDirectory) -> Sequence[str]:
    """Lists problems as ``odfctl doctor --deep`` does, except the intended absence of journals."""
    from odfd.services.maintenance.doctor import Doctor

    probes = Doctor(home, home.visibility, dict, {}).deep()
    return [f"{probe.name}: {probe.message}" for probe in probes if probe.result == "failed" and probe.name != "keys"]


def _value(done: Restored) -> dict[str, Any]:
    return {
        "directory": str(done.directory),
        "time": done.snapshot.time,
        "objects": done.snapshot.objects - len(done.damaged),
        "damaged": list(done.damaged),
        "lostJournals": done.keys,
    }


def _text(done: Restored) -> str:
    copy = done.snapshot
    files = f"{formatting.plural(copy.objects - len(done.damaged), 'large object')} ({formatting.size(copy.bytes)})"
    counted = f"the database with {formatting.plural(copy.small, 'small object')}, {files}"
    lines = [
        f"restored the state of {formatting.moment(copy.time)} to {done.directory}: {counted}, all of it as backed up",
        *([f"left out, damaged: {', '.join(done.damaged)}"] if done.damaged else []),
        *([SIGNING.format(keys=done.directory / "keys")] if done.keys else []),
    ]
    return "\n".join(lines)


def _progress(report: Report, directory: Path) -> wire.TaskState:
    done, total, unit, message = report.summary()
    return wire.TaskState(
        kind="restore",
        target=str(directory),
        state="running",
        message=message,
        done=done,
        total=total,
        unit=unit,
    )


FRESH_SECONDS: Final = 86_400
"""Age of the last backup, in seconds, from which a new one is recommended."""


upgrade = commands.group(
    "upgrade", description="Checks before this version of odfd starts a node.", example="check /var/lib/odfd"
)


@upgrade.add(
    "check",
    argument("directory", metavar="DIR", help="the state directory of the node"),
    help="check on a copy whether this version can take over a node's state",
    description="Say what a start of this version would change in a state directory, tried on a copy of its database, "
    "and whether there is a backup to go back to. Nothing is changed; the node may be running.",
    example="/var/lib/odfd",
)
def _check(session: Session, args: argparse.Namespace) -> int:
    directory = Path(args.directory).expanduser().resolve()
    probes = list(look_through(directory, time.time()))
    session.show([msgspec.to_builtins(probe) for probe in probes], lambda _: doctor_text(probes))
    return ExitCode.NO if any(probe.result == "failed" for probe in probes) else ExitCode.OK


def look_through(directory: Path, now: float) -> Iterator[wire.Probe]:
    """Yields probes of a state directory; ``now``: seconds since 1970. Raises NotFound, Environment."""
    from odfd.services.maintenance.upgrade import table_changes

    changes = table_changes(directory)
    yield wire.Probe(name="version", result="ok", message=f"this is odfd {__version__}")
    yield _of_database(directory, changes)
    yield _of_backup(directory, now)


def _of_database(directory: Path, changes: list[TableChange]) -> wire.Probe:
    from odfd.services.maintenance.upgrade import has_room_for_copy, try_on_copy

    if not changes:
        return wire.Probe(name="database", result="ok", message="its tables are those of this version")
    text = ", ".join(f"{change.room} {change.here} to {change.known}" for change in changes)
    if any(change.is_newer for change in changes):
        return wire.Probe(
            name="database",
            result="failed",
            message=f"a newer odfd wrote it: {text}",
            hint="start it with the newer version, or restore a backup that this one wrote",
        )
    if not has_room_for_copy(directory):
        return wire.Probe(
            name="database",
            result="warning",
            message=f"a start brings it forward, not tried for want of disk: {text}",
            hint="free twice the size of the database, and check again",
        )
    try:
        try_on_copy(directory)
    except Fault as fault:
        return wire.Probe(name="database", result="failed", message=fault.message, hint=fault.hint)
    message = f"a start brings it forward, as tried on a copy: {text}; older versions do not read it then"
    return wire.Probe(name="database", result="ok", message=message)


def _of_backup(directory: Path, now: float) -> wire.Probe:
    from chain.instant import SECOND, parse
    from odfd.services.maintenance.backup import last_backup

    found = last_backup(directory)
    hint = "odfctl backup FOLDER, while the old version runs"
    if found is None:
        return wire.Probe(name="backup", result="warning", message="none is known to go back to", hint=hint)
    message = f"the last is of {found.time}, in {found.place}"
    if now - parse(found.time) / SECOND > FRESH_SECONDS:
        return wire.Probe(name="backup", result="warning", message=message, hint=hint)
    return wire.Probe(name="backup", result="ok", message=message)

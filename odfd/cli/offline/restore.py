"""``restore``: makes a state directory from a backup, verified, with no daemon."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odfd import output
from odfd.cli import formatting
from odfd.cli.command import Commands, argument
from odfd.cli.progress import Meter
from odfd.cli.session import Session
from odfd.control import wire

if TYPE_CHECKING:
    from odfd.runtime.tasks import Report
    from odfd.state.directory import StateDirectory
    from odfd.state.restore import Restored

SIGNING = """Its keys sign nothing yet: what they signed after this backup is not in it, and a key that contradicted
itself would be proven to have. Choose one:
  the old node's disk is there   copy its keys/*.journal to {keys} before the start
  it is lost                     start the node and join its network: it asks the validators and witnesses that it
                                 lists what its keys have signed, and goes on by itself; odfctl trust sign hastens that
  nobody has seen anything       odfctl trust sign --alone
Never run the old node and this one at the same time."""


commands = Commands()


@commands.add(
    "restore",
    argument("backup", metavar="BACKUP", help="the folder that odfctl backup wrote to"),
    argument("directory", metavar="DIR", help="a folder that is empty, or not there"),
    argument("--snapshot", metavar="NAME", help="of those in BACKUP/snapshots; the newest"),
    argument("--skip-damaged", action="store_true", help="go on without objects that are damaged"),
    description="Make a state directory from a backup, with no daemon: every file and object is hashed, database\n"
    "and chains are looked through, and only then does DIR get its name. Start the node with --state DIR.",
    example="/mnt/backup/alice ./alice",
)
def _restore(session: Session, args: argparse.Namespace) -> None:
    from odfd.runtime.tasks import Report
    from odfd.state.restore import choose, restore

    backup, directory = Path(args.backup).expanduser().resolve(), Path(args.directory).expanduser().resolve()
    meter, report = Meter(session, output.error_stream()), Report()
    meter.show(_shown(report, directory))
    try:
        done = restore(choose(backup, args.snapshot), directory, what_is_wrong, report, skip_damaged=args.skip_damaged)
    finally:
        meter.clear()
    session.show(_value(done), lambda _: _text(done))


def what_is_wrong(home: StateDirectory) -> Sequence[str]:
    """As ``odfctl doctor --deep`` finds it. That journals are gone is meant."""
    from odfd.api.maintenance.doctor import Doctor
    from odfd.datasets.visibility import Visibility

    visibility = Visibility(home.database, home.chains, home.keys.has_dataset_key, lambda: False)
    probes = Doctor(home, visibility, dict, {}).deep()
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
    said = done.snapshot
    counted = f"{formatting.plural(said.objects - len(done.damaged), 'object')} ({formatting.size(said.bytes)})"
    lines = [
        f"restored the state of {formatting.moment(said.time)} to {done.directory}: {counted}, all of it as backed up",
        *([f"left out, damaged: {', '.join(done.damaged)}"] if done.damaged else []),
        *([SIGNING.format(keys=done.directory / "keys")] if done.keys else []),
    ]
    return "\n".join(lines)


def _shown(report: Report, directory: Path) -> wire.TaskView:
    done, total, unit, message = report.shown()
    return wire.TaskView(
        id="",
        kind="restore",
        target=str(directory),
        state="running",
        message=message,
        done=done,
        total=total,
        unit=unit,
    )

"""``backup``: copies what the running node holds into a folder."""

from __future__ import annotations

import argparse
from pathlib import Path

from odfd.cli import formatting
from odfd.cli.command import Commands, argument
from odfd.cli.progress import submit
from odfd.cli.session import Session
from odfd.control import wire

commands = Commands()


@commands.add(
    "backup",
    argument("to", metavar="DIR"),
    argument("--keep", type=int, default=7, metavar="N", help="snapshots that stay there (7)"),
    description="Copy what the running node holds, as of one moment, into a folder: datasets, statements, keys.\n"
    "A later backup into the same folder copies what is new. The daemon writes it, so it must be allowed to.\n"
    "It holds secret keys: keep it as you keep those. Journals of signing are left out; odfctl restore says why.",
    example="/mnt/backup/alice --keep 14",
)
def _backup(session: Session, args: argparse.Namespace) -> None:
    request = wire.BackupRequest(to=str(Path(args.to).expanduser().resolve()), keep=args.keep)
    done = submit(session, "/backup", request, wire.BackupResult)
    session.answer(done, backup_text)


def backup_text(done: wire.BackupResult) -> str:
    dropped = f", {formatting.plural(done.dropped, 'older snapshot')} removed" if done.dropped else ""
    copied = f"{formatting.plural(done.copied, 'object')} copied ({formatting.size(done.bytes)}) of {done.objects:,}"
    return f"backed up to {done.snapshot}: {copied}{dropped}\nodfctl restore {Path(done.snapshot).parent.parent} DIR"

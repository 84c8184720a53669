"""``backup``: copies what the running node holds into a folder."""

from __future__ import annotations

import argparse
from pathlib import Path

from odfd.cli import formatting
from odfd.cli.parsers import Subparsers
from odfd.cli.progress import submit
from odfd.cli.session import Session
from odfd.control import wire
from odfd.errors import ExitCode


def register(subparsers: Subparsers) -> None:
    backup = subparsers.add_parser(
        "backup",
        help="copy what the node holds into a folder",
        description="Copy what the running node holds, as of one moment, into a folder: datasets, statements, keys.\n"
        "A later backup into the same folder copies what is new. The daemon writes it, so it must be allowed to.\n"
        "It holds secret keys: keep it as you keep those. Journals of signing are left out; odfctl restore says why.",
        epilog="example:  odfctl backup /mnt/backup/alice --keep 14",
    )
    backup.add_argument("to", metavar="DIR")
    backup.add_argument("--keep", type=int, default=7, metavar="N", help="snapshots that stay there (7)")
    backup.set_defaults(run=_backup)


def _backup(args: argparse.Namespace) -> int:
    session = Session(args)
    request = wire.BackupRequest(to=str(Path(args.to).expanduser().resolve()), keep=args.keep)
    done = submit(session, "/backup", request, wire.BackupResult)
    session.answer(done, backup_text)
    return ExitCode.OK


def backup_text(done: wire.BackupResult) -> str:
    dropped = f", {formatting.plural(done.dropped, 'older snapshot')} removed" if done.dropped else ""
    copied = f"{formatting.plural(done.copied, 'object')} copied ({formatting.size(done.bytes)}) of {done.objects:,}"
    return f"backed up to {done.snapshot}: {copied}{dropped}\nodfctl restore {Path(done.snapshot).parent.parent} DIR"

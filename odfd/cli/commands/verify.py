"""``verify``: verifies a dataset in the daemon, or a directory in this process."""

from __future__ import annotations

import argparse

from odfd.cli.command import Commands, argument
from odfd.cli.offline import files
from odfd.cli.offline.verify import check_directory
from odfd.cli.progress import submit
from odfd.cli.report import can_be_repaired, report_text
from odfd.cli.session import Session
from odfd.control import wire
from odfd.control.client import part
from odfd.errors import ExitCode, Usage

commands = Commands()


@commands.add(
    "verify",
    argument("target", metavar="REF|DIR"),
    argument("--level", choices=("chain", "data", "reproduced"), default="data", help="how deep (data)"),
    argument("--from", dest="from_block", metavar="#N", default="0", help="data and transforms from here on"),
    argument("--full", action="store_true", help="forget what was verified before"),
    description="Check everything again, believing nobody. Levels: chain (hashes, links, rules), data (every slice\n"
    "against both its hashes, offsets, schema), reproduced (every transform run again, by the daemon).\n"
    "Ends with 0 when all is well, 1 when something is not. A directory (†) needs no daemon.",
    example="./mirror/nyc.flights\nnyc.flights.delays --level reproduced",
)
def _verify(session: Session, args: argparse.Namespace) -> int:
    start = _number(args.from_block)
    if files.is_directory(args.target):
        report = check_directory(session, args.target, args.level, start)
    else:
        request = wire.VerifyRequest(level=args.level, from_block=start, full=args.full)
        report = submit(session, f"/datasets/{part(args.target)}/verify", request, wire.VerifyReport)
    session.answer(report, report_text)
    if not files.is_directory(args.target) and can_be_repaired(report.value):
        session.remark(f"fetch what is damaged here from peers: odfctl pull {args.target} --repair")
    return ExitCode.OK if report.value.ok else ExitCode.NO


def _number(text: str) -> int:
    number = text.removeprefix("#")
    if not (number.isascii() and number.isdigit()):
        raise Usage(f"not a block number: {text!r}", hint="write it like --from 9 or --from '#9'")
    return int(number)

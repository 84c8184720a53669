"""``verify``: verifies a dataset in the daemon, or a directory in this process."""

from __future__ import annotations

import argparse

from odfd.cli.offline import files
from odfd.cli.offline.verify import check_directory
from odfd.cli.parsers import Subparsers
from odfd.cli.progress import submit
from odfd.cli.report import can_be_repaired, report_text
from odfd.cli.session import Session
from odfd.control import wire
from odfd.control.client import part
from odfd.errors import ExitCode, Usage


def register(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "verify",
        help="check a dataset or a directory",
        description=(
            "Check everything again, believing nobody. Levels: chain (hashes, links, rules), data (every slice\n"
            "against both its hashes, offsets, schema), reproduced (every transform run again, by the daemon).\n"
            "Ends with 0 when all is well, 1 when something is not. A directory (†) needs no daemon."
        ),
        epilog=(
            "example:  odfctl verify ./mirror/nyc.flights\n"
            "          odfctl verify nyc.flights.delays --level reproduced"
        ),
    )
    parser.add_argument("target", metavar="REF|DIR")
    parser.add_argument("--level", choices=("chain", "data", "reproduced"), default="data", help="how deep (data)")
    parser.add_argument("--from", dest="from_block", metavar="#N", default="0", help="data and transforms from here on")
    parser.add_argument("--full", action="store_true", help="forget what was verified before")
    parser.set_defaults(run=_verify)


def _verify(args: argparse.Namespace) -> int:
    start = _number(args.from_block)
    session = Session(args)
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

"""``verify``: how deep this machine checks, now, by itself. A directory is checked here, a dataset by the daemon."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path
from typing import Any

from odfd.cli import words
from odfd.cli.progress import follow
from odfd.cli.session import Session
from odfd.cli.table import clean, fields
from odfd.control.client import part
from odfd.errors import ExitCode, Usage


def register(subparsers: Any) -> None:
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
    start = args.from_block.removeprefix("#")
    if not (start.isascii() and start.isdigit()):
        raise Usage(f"not a block number: {args.from_block!r}", hint="write it like --from 9 or --from '#9'")
    if is_directory(args.target):
        return _directory(args, start)
    session = Session(args)
    wish = {"level": args.level, "fromBlock": int(start), "full": args.full}
    report = follow(session, session.client.post(f"/datasets/{part(args.target)}/verify", wish))
    session.answer(report, report_text)
    return ExitCode.OK if report["ok"] else ExitCode.NO


def is_directory(target: str) -> bool:
    """What looks like a path is one, also when it is not there: its message must speak of files then."""
    return target.startswith((".", "/", "~")) or "/" in target.partition("://")[0] or Path(target).is_dir()


def _directory(args: argparse.Namespace, start: str) -> int:
    """Hand over to the command that checks files; it reads its own arguments."""
    if args.level == "reproduced":
        raise Usage(
            "a directory can be checked to the levels chain and data; transforms are run again by a daemon",
            hint=f"odfctl import {args.target}, and then odfctl verify NAME --level reproduced",
        )
    own = argparse.ArgumentParser()
    importlib.import_module("odfd.cli.offline.verify").register(own.add_subparsers())
    known = own.parse_args(["verify", args.target, "--level", args.level, "--from", start])
    return int(known.run(argparse.Namespace(**(vars(args) | vars(known) | {"output": args.output}))))


def report_text(report: dict[str, Any]) -> str:
    """``yes:`` or ``no:``, what was looked at, and each failure with what to compare."""
    checked = report["checked"]
    if report["ok"]:
        lines = [f"yes: {words.plural(report['blocks'], 'block')} of {report['ref']} hold at level {report['level']}"]
    else:
        failed = {(one["block"] or {}).get("sequenceNumber") for one in report["failures"]}
        lines = [f"no: {len(failed)} of {words.plural(report['blocks'], 'block')} fail at level {report['level']}"]
    looked = [
        (noun, f"{checked.get(noun, 0):,}") for noun in ("blocks", "slices", "transforms") if checked.get(noun, 0)
    ]
    lines.append(
        "  checked " + ", ".join([*(f"{number} {noun}" for noun, number in looked), words.size(checked["bytes"])])
    )
    for failure in report["failures"]:
        block = failure["block"] or {}
        number = block.get("sequenceNumber")
        head = f"  #{number}" if number is not None else "  -"
        lines.append(f"{head} {words.digest(block.get('hash'))}  {failure['rule']}  {clean(failure['message'], 300)}")
        pairs = [(name, str(failure[name])) for name in ("expected", "actual") if failure.get(name) is not None]
        lines += ["      " + line for line in fields(pairs).splitlines()]
    return "\n".join(lines)

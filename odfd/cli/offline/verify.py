"""``verify DIR``: a folder in the ODF layout, checked by this process alone: no daemon, no network, no Spark."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from chain.errors import NotFound
from odfd.cli.commands.verify import report_text
from odfd.cli.progress import Meter
from odfd.cli.session import Session
from odfd.errors import ExitCode, Usage


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "verify",
        help="check a directory in the ODF layout",
        description="Checks hashes, links and rules (chain), and every object against both of its hashes (data).",
        epilog="example:  odfctl verify ./mirror/nyc.flights --level chain",
    )
    parser.add_argument("directory", metavar="DIR")
    parser.add_argument("--level", choices=("chain", "data"), default="data", help="how deep (data)")
    parser.add_argument("--from", dest="start", metavar="#N", default="#0", help="look from this block on")
    parser.set_defaults(run=_verify)


def _verify(args: argparse.Namespace) -> int:
    import msgspec

    from chain.store.layout import DirectoryChain, DirectoryObjects, is_dataset
    from odfd.verify.report import Level, Progress
    from odfd.verify.verify import Request, verify_chain

    directory = Path(args.directory).expanduser()
    if not is_dataset(directory):
        raise NotFound(
            f"{args.directory} is not a dataset: it has no refs/head",
            rule="layout-dataset",
            hint="name the folder that holds refs, blocks and data",
        )
    session = Session(args)
    meter = Meter(session, sys.stderr)

    def show(progress: Progress) -> None:
        meter.show(
            {
                "kind": "verify",
                "target": args.directory,
                "state": "running",
                "message": f"blocks {progress.blocks:,}/{progress.blocks_total:,}",
                "done": progress.bytes,
                "total": progress.bytes_known or None,
                "unit": "bytes",
            }
        )

    request = Request(ref=args.directory, level=Level(args.level), start=_start(args.start))
    try:
        report = verify_chain(DirectoryChain(directory), DirectoryObjects(directory), request, show)
    finally:
        meter.clear()
    session.answer(msgspec.to_builtins(report), report_text)
    return ExitCode.OK if report.ok else ExitCode.NO


def _start(text: str) -> int:
    number = text.removeprefix("#")
    if not (number.isascii() and number.isdigit()):
        raise Usage(f"not a block number: {text!r}", hint="write it like --from 9 or --from '#9'")
    return int(number)

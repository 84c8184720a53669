"""``export``, ``import``: write whole datasets as directories, and take them in."""

from __future__ import annotations

import argparse
from pathlib import Path

from odfd.cli import words
from odfd.cli.parsers import Subparsers
from odfd.cli.progress import submit
from odfd.cli.session import Session
from odfd.control import wire
from odfd.control.client import part
from odfd.errors import ExitCode


def register(subparsers: Subparsers) -> None:
    export = subparsers.add_parser(
        "export",
        help="write a dataset as a directory",
        description="Write a dataset in the ODF layout, with what was signed of it. The daemon writes it, so it must\n"
        "be allowed to. From any web server that serves the directory, others import it and mirror it.",
        epilog="example:  odfctl export nyc.flights ./out",
    )
    export.add_argument("ref", metavar="REF")
    export.add_argument("to", metavar="DIR|URL")
    export.set_defaults(run=_export)
    import_ = subparsers.add_parser(
        "import",
        help="take in a dataset from a directory or a URL",
        description="Take in a dataset from the ODF layout, as it is now; everything is verified first.\n"
        "URL is https://HOST/FOLDER, ipfs://CID or ipns://NAME. What was cut off goes on where it stopped.",
        epilog="example:  odfctl import https://data.example/nyc.flights --as flights",
    )
    import_.add_argument("source", metavar="DIR|URL")
    import_.add_argument("--as", dest="as_name", metavar="NAME", help="local name")
    import_.set_defaults(run=_import)


def _place(text: str) -> str:
    """A path as the daemon must see it; a URL as it is."""
    return text if "://" in text else str(Path(text).expanduser().resolve())


def _export(args: argparse.Namespace) -> int:
    session = Session(args)
    request = wire.ExportRequest(to=_place(args.to))
    done = submit(session, f"/datasets/{part(args.ref)}/export", request, wire.TransferResult)
    session.answer(done, lambda done: f"exported {_moved(done)} to {done.place}")
    return ExitCode.OK


def _import(args: argparse.Namespace) -> int:
    session = Session(args)
    request = wire.ImportRequest(source=_place(args.source), as_name=args.as_name)
    done = submit(session, "/import", request, wire.TransferResult)
    session.answer(done, lambda done: f"imported {_moved(done)} from {done.place}")
    return ExitCode.OK


def _moved(done: wire.TransferResult) -> str:
    counted = f"{words.plural(done.blocks, 'block')}, {words.plural(done.objects, 'object')}"
    return f"{done.ref}: {counted}, {words.size(done.bytes)},"

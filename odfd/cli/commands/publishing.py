"""``publish``, ``unpublish``: make datasets public, or private again."""

from __future__ import annotations

import argparse

from odfd.cli.parsers import Subparsers
from odfd.cli.session import Session
from odfd.cli.table import TableColumn, render
from odfd.control import wire
from odfd.errors import ExitCode, Usage


def register(subparsers: Subparsers) -> None:
    publish = subparsers.add_parser(
        "publish",
        help="let others see and take datasets",
        description=(
            "Let others see datasets and take them: peers of the network, and over HTTP and IPFS where the settings\n"
            "say so. Until then nothing of a dataset leaves the node, not even that it is here. With --all those that\n"
            "are here now; policy.publish.datasets of the settings publishes later ones too."
        ),
        epilog="example:  odfctl publish nyc.flights",
    )
    unpublish = subparsers.add_parser(
        "unpublish",
        help="say and give no more of them",
        description=(
            "Say and give no more of datasets: they are private again, also after a restart. What others took of them\n"
            "stays theirs."
        ),
        epilog="example:  odfctl unpublish nyc.flights",
    )
    for parser, path in ((publish, "/publish"), (unpublish, "/unpublish")):
        parser.add_argument("refs", nargs="*", metavar="NAME")
        parser.add_argument("--all", action="store_true", help="every dataset that is here now")
        parser.set_defaults(run=_say, path=path)


def _say(args: argparse.Namespace) -> int:
    word = args.path.strip("/")
    if bool(args.refs) == args.all:
        raise Usage(f"{word} names datasets, or --all", hint=f"odfctl {word} NAME")
    session = Session(args)
    rows = session.client.post(
        args.path, list[wire.VisibilityView], wire.VisibilityRequest(refs=tuple(args.refs), all=args.all)
    )
    session.answer(rows, lambda rows: render(_COLUMNS, rows))
    for row in rows.value:
        for note in row.notes:
            session.remark(f"{row.name}: {note}")
    if not rows.value:
        session.remark("no datasets yet")
    return ExitCode.OK


_COLUMNS: tuple[TableColumn[wire.VisibilityView], ...] = (
    TableColumn("NAME", lambda row: row.name),
    TableColumn("DONE", lambda row: "unchanged" if not row.changed else "published" if row.published else "private"),
    TableColumn("ID", lambda row: row.id, most=90),
)

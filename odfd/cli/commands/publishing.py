"""``publish``, ``unpublish``: make datasets public, or private again."""

from __future__ import annotations

import argparse

from odfd.cli.command import Commands, argument
from odfd.cli.session import Session
from odfd.cli.table import TableColumn, render
from odfd.control import wire
from odfd.errors import Usage

commands = Commands()
_DATASETS = (
    argument("refs", nargs="*", metavar="NAME"),
    argument("--all", action="store_true", help="every dataset that is here now"),
)


@commands.add(
    "unpublish",
    *_DATASETS,
    description=(
        "Say and give no more of datasets: they are private again, also after a restart. What others took of them\n"
        "stays theirs."
    ),
    example="nyc.flights",
)
@commands.add(
    "publish",
    *_DATASETS,
    description=(
        "Let others see datasets and take them: peers of the network, and over HTTP and IPFS where the settings\n"
        "say so. Until then nothing of a dataset leaves the node, not even that it is here. With --all those that\n"
        "are here now; policy.publish.datasets of the settings publishes later ones too."
    ),
    example="nyc.flights",
)
def _change(session: Session, args: argparse.Namespace) -> None:
    word = args.command
    if bool(args.refs) == args.all:
        raise Usage(f"{word} names datasets, or --all", hint=f"odfctl {word} NAME")
    rows = session.client.post(
        f"/{word}", list[wire.VisibilityView], wire.VisibilityRequest(refs=tuple(args.refs), all=args.all)
    )
    session.answer(rows, lambda rows: render(_COLUMNS, rows))
    for row in rows.value:
        for note in row.notes:
            session.remark(f"{row.name}: {note}")
    if not rows.value:
        session.remark("no datasets yet")


_COLUMNS: tuple[TableColumn[wire.VisibilityView], ...] = (
    TableColumn("NAME", lambda row: row.name),
    TableColumn("DONE", lambda row: "unchanged" if not row.changed else "published" if row.published else "private"),
    TableColumn("ID", lambda row: row.id, most=90),
)

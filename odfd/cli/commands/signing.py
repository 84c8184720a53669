"""``trust sign``: lets keys sign again whose signing journals are lost."""

from __future__ import annotations

import argparse

from odfd.cli import formatting
from odfd.cli.command import Commands, argument
from odfd.cli.session import Session
from odfd.cli.table import TableColumn, render
from odfd.control import wire

commands = Commands()


@commands.add(
    "sign",
    argument(
        "--alone",
        action="store_true",
        help="also when none that is listed can be asked: you say that nothing else was signed, or nobody will tell",
    ),
    help="let keys sign again whose signing journals are gone",
    description=(
        "A key that does not know what it has signed might contradict itself, which others prove and keep. When\n"
        "its journal (keys/*.journal) is gone, connected peers are asked what they heard of it. Validators and\n"
        "witnesses that the policy lists count, strangers do not: the node itself goes on with more groups than\n"
        "may be faulty, this command with one. What was signed and is not here has to be fetched then:\n"
        "odfctl pull REF --repair."
    ),
    example="--alone",
)
def _sign(session: Session, args: argparse.Namespace) -> None:
    session.answer(session.client.post("/signers", wire.SigningView, wire.SignRequest(alone=args.alone)), signing_text)


def signing_text(view: wire.SigningView) -> str:
    if not view.begun:
        return "every key of this node has its signing journal: nothing to do"
    columns: tuple[TableColumn[wire.SignerView], ...] = (
        TableColumn("KEY", lambda row: formatting.identity(row.key)),
        TableColumn("OF", lambda row: row.dataset or "this node"),
        TableColumn("KNOWN", lambda row: formatting.plural(row.said, "last word")),
    )
    asked = formatting.plural(view.peers, "listed group") if view.peers else "nobody that is listed"
    return f"{render(columns, view.begun)}\nThey sign again; {asked} could be asked."

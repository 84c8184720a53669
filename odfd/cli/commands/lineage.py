"""``lineage``: shows which datasets a dataset is derived from, or which records a record is derived from."""

from __future__ import annotations

import argparse

from odfd import output
from odfd.cli.command import REF, Commands, argument
from odfd.cli.lineage_text import DRAWINGS, graph_tree, record_tree
from odfd.cli.progress import submit
from odfd.cli.session import Session
from odfd.control import wire
from odfd.control.client import part
from odfd.errors import Usage

commands = Commands()


@commands.add(
    "lineage",
    REF,
    argument("--record", type=int, metavar="OFFSET", help="of this record"),
    argument("--column", metavar="C", help="only what this column of the record was made of"),
    argument("--graph", choices=tuple(DRAWINGS), help="the datasets as a graph, for Graphviz or for Markdown"),
    argument("--limit", type=int, default=20, metavar="N", help="records told of each record (20)"),
    description="Without --record: the datasets that a dataset is made of, and those that are made of it here.\n"
    "With --record: which records of its inputs that record was made of, and why of these, from dataset\n"
    "to dataset down to the source of the first ingest. docs/provenance.md says what counts.",
    example=(
        "nyc.flights.delays\n"
        "nyc.flights.delays --record 17 --column delay -o json\n"
        "nyc.flights.delays --graph dot | dot -Tsvg > lineage.svg"
    ),
)
def _lineage(session: Session, args: argparse.Namespace) -> None:
    path = f"/datasets/{part(args.ref)}/lineage"
    if args.record is None:
        if args.column is not None:
            raise Usage("--column asks about a record", hint="name it: --record OFFSET")
        if args.graph is not None:
            output.say(DRAWINGS[args.graph](session.client.get(path, wire.LineageGraph).value))
            return
        session.answer(session.client.get(path, wire.LineageGraph), graph_tree)
        return
    if args.graph is not None:
        raise Usage("--graph draws datasets, not records", hint="leave out --record; -o json tells all of a record")
    if args.record < 0:
        raise Usage(f"no offset of a record: {args.record}", hint="odfctl tail REF shows the last ones")
    request = wire.LineageRequest(record=args.record, column=args.column, limit=args.limit)
    session.answer(submit(session, path, request, wire.Lineage), record_tree)

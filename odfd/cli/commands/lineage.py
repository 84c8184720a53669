"""``lineage``: shows which datasets a dataset is derived from, or which records a record is derived from."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Protocol

from odfd import output
from odfd.cli.command import REF, Commands, argument
from odfd.cli.commands.rendition import RENDITION, read_of
from odfd.cli.lineage_text import dot, graph_tree, mermaid, record_tree, svg
from odfd.cli.progress import submit
from odfd.cli.session import FORMATS, Session
from odfd.control import calls, wire
from odfd.errors import Usage
from odfd.runtime.extensions import ExportFormats
from odfd.usage import how_many

commands = Commands()
EVENTS: Final = ExportFormats("events")
DRAWINGS: Final[Mapping[str, Callable[[wire.LineageGraph], str]]] = {"dot": dot, "svg": svg, "mermaid": mermaid}


class RunEvents(Protocol):
    """Run events of a derived dataset's newest transactions. Made with a client, a dataset, and how many at most."""

    left_out: bool
    """Whether there are older transactions."""

    def events(self) -> Iterator[dict[str, Any]]: ...


@commands.add(
    "lineage",
    REF,
    argument("--record", type=int, metavar="OFFSET", help="trace this record"),
    argument("--column", metavar="C", help="only the rows on which this column of the record depends"),
    argument(
        "-o",
        "--output",
        choices=(*FORMATS, *DRAWINGS),
        default=argparse.SUPPRESS,
        metavar="FORMAT",
        help=f"{', '.join(FORMATS)}; datasets also as a drawing: dot for Graphviz, svg, mermaid for Markdown",
    ),
    argument("--graph", choices=tuple(DRAWINGS), help="the same as -o dot, svg or mermaid"),
    argument(
        "--events",
        choices=EVENTS,
        metavar="STANDARD",
        help="print the newest transactions of a derived dataset as run events, one a line: openlineage",
    ),
    argument(
        "--limit",
        type=how_many,
        default=20,
        metavar="N",
        help="maximum records listed for each record, or transactions (20)",
    ),
    RENDITION,
    description="Without --record: the datasets from which a dataset is derived, and those that are derived from it "
    "here. With --record: the input records from which that record was computed, with the reason for "
    "each, from dataset to dataset back to the ingested source. odfctl docs provenance defines which records "
    "count.",
    example=(
        "nyc.flights.delays\n"
        "nyc.flights.delays --record 17 --column delay -o json\n"
        "nyc.flights.delays -o svg > lineage.svg\n"
        "nyc.flights.delays --events openlineage --limit 1000 > events.ndjson"
    ),
)
def _lineage(session: Session, args: argparse.Namespace) -> None:
    if args.output in DRAWINGS:
        args.graph = args.output
    _check(args)
    args.ref = read_of(session, args.ref, args)
    if args.events is not None:
        _events(session, args)
        return
    if args.record is None:
        if args.graph is not None:
            output.say(DRAWINGS[args.graph](session.client.do(calls.lineage_graph(args.ref)).value))
            return
        session.answer(session.client.do(calls.lineage_graph(args.ref)), graph_tree)
        return
    request = wire.LineageRequest(record=args.record, column=args.column, limit=args.limit)
    traced = submit(session, calls.lineage_trace(args.ref, request), wire.Lineage)
    session.answer(traced, record_tree)
    for line in traced.value.remarks:
        session.remark(line)


def _check(args: argparse.Namespace) -> None:
    """Raises Usage for options that do not go together."""
    if args.events is not None:
        if args.record is not None or args.column is not None or args.graph is not None:
            raise Usage("--events lists all transactions", hint="leave out --record, --column and --graph")
        if args.limit < 1:
            raise Usage(f"no number of transactions: {args.limit}", hint="--limit 1000")
    elif args.record is None:
        if args.column is not None:
            raise Usage("--column asks about a record", hint="name it: --record OFFSET")
    elif args.graph is not None:
        raise Usage("a drawing shows datasets, not records", hint="leave out --record; -o json shows all of a record")
    elif args.record < 0:
        raise Usage(f"no offset of a record: {args.record}", hint="odfctl tail REF shows the last ones")


def _events(session: Session, args: argparse.Namespace) -> None:
    """Writes NDJSON whatever the output format: tools that take events read lines of JSON."""
    runs: RunEvents = EVENTS.load(args.events)(session.client, args.ref, args.limit)
    for event in runs.events():
        output.say_json(json.dumps(event, ensure_ascii=False))
    if runs.left_out:
        session.remark(f"only the newest transactions, to the number of {args.limit}: --limit takes more")

"""``events``: shows the changes of resources, from the log that the node keeps of them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator

from odfd import output
from odfd.cli import formatting
from odfd.cli.command import Commands, argument
from odfd.cli.session import Session
from odfd.cli.table import WHOLE, TableColumn, clean, render
from odfd.cli.watch_retry import resume
from odfd.control import calls, wire
from odfd.control.client import Answer
from odfd.errors import Usage
from odfd.usage import how_many

commands = Commands()
_COLUMNS: tuple[TableColumn[wire.ResourceChange], ...] = (
    TableColumn("TIME", lambda row: formatting.moment(row.time)),
    TableColumn("RESOURCE", lambda row: f"{row.type}/{row.name}"),
    TableColumn("GENERATION", lambda row: formatting.count(row.generation), right=True),
    TableColumn("CHANGE", lambda row: row.change),
    TableColumn("", lambda row: "; ".join(row.details), most=WHOLE),
)


@commands.add(
    "events",
    argument("--for", dest="of", metavar="KIND/NAME", help="only events of this resource, which may be deleted"),
    argument(
        "-w",
        "--watch",
        action="store_true",
        help="afterwards print each event as it happens; each line begins with its version",
    ),
    argument("--since", metavar="VERSION", help="with -w: only events after this version"),
    argument("-n", "--limit", type=how_many, metavar="N", help="number of events (100)"),
    description="Print what happened to resources: which were created, changed and deleted, and what the node did "
    "with them. The log survives restarts. It keeps at least one day and 100,000 events.",
    example="--for flow/hourly\n-w --for dataset/nyc.flights",
)
def _events(session: Session, args: argparse.Namespace) -> None:
    if not args.watch:
        if args.since is not None:
            raise Usage("--since tells what comes after", hint=f"odfctl events -w --since {args.since}")
        rows = session.client.do(calls.history_last(of=args.of, limit=args.limit))
        session.answer(rows, lambda found: render(_COLUMNS, found))
        return
    output.end_when_unread()
    try:
        for news in _changes(session, args):
            _line(session, news.value, news.sent)
            output.flush()
    except KeyboardInterrupt:  # the usual end of watching
        return


def _changes(session: Session, args: argparse.Namespace) -> Iterator[Answer[wire.ResourceChange]]:
    """Yields changes; goes on when the account's rights changed, or the daemon was away."""
    since: str | None = args.since

    def open_(begun: Callable[[], None]) -> Iterator[Answer[wire.ResourceChange]]:
        nonlocal since
        again = True
        while again:
            again = False
            call = calls.history_follow(since=since, limit=args.limit, of=args.of, bookmark=True)
            for news in session.client.stream(call, begun):
                again = news.value.change == "Reset"
                since = None if again else news.value.version
                if news.value.change != "Bookmark":
                    yield news

    return resume(session, open_)


def _line(session: Session, row: wire.ResourceChange, sent: object) -> None:
    if row.change == "Reset":
        session.line(sent, f"{row.version}  Reset")
        return
    details = "; ".join(row.details)
    text = f"{row.version}  {formatting.moment(row.time)}  {row.type}/{row.name}  {row.change}  {details}"
    session.line(sent, clean(text.rstrip(), WHOLE))

"""``events``, ``logs``: show the changes of resources, and the last lines of the daemon's log, and follow them."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from typing import Any, Final

from config.log_levels import LEVELS
from config.paths import has_part
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
            raise Usage("--since needs -w", hint=f"odfctl events -w --since {args.since}")
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


_TASK: Final = "task"


@commands.add(
    "logs",
    argument("task", nargs="?", metavar="task/ID", help="only lines of one task, which may be finished"),
    argument("-f", "--follow", action="store_true", help="then print each new line of the log"),
    argument("-n", "--limit", type=how_many, metavar="N", help="number of lines (100)"),
    argument("--level", choices=LEVELS, help="only lines of this level and above"),
    argument("--part", metavar="PART", help="only lines of one part of the daemon, like p2p or odfd.mirrors"),
    description="Print the last lines of the daemon's log, oldest first. The daemon keeps the last 10,000 lines, at "
    "most 4 MiB; older lines are where its standard error goes (journalctl -u odfd). The settings "
    "node.log-level and node.log-levels decide which lines it logs.",
    example="-f --level warning\ntask/1f0a2b3c\n--part odfd.mirrors -n 20",
)
def _logs(session: Session, args: argparse.Namespace) -> None:
    asked: dict[str, Any] = {
        "task": _task_id(args.task),
        "limit": args.limit,
        "level": args.level,
        "part": args.part,
    }
    if not args.follow:
        lines = session.client.do(calls.log_lines_last(**asked))
        session.answer(lines, lambda found: "\n".join(map(_text, found)))
        if not lines.value and args.part and not has_part(args.part):
            raise Usage(f"no part of the daemon is called {args.part!r}", hint="each line names its part: odfctl logs")
        if not lines.value:
            session.remark("no such line is kept: the log has those of node.log-level and above")
        return
    output.end_when_unread()
    try:
        for news in session.client.stream(calls.log_lines_follow(**asked)):
            session.line(news.sent, _text(news.value))
            output.flush()
    except KeyboardInterrupt:  # the usual end of following
        return
    raise session.client.lost_connection()


def _task_id(said: str | None) -> str | None:
    """Returns the id of a task from ``task/ID``. Raises Usage for another kind, which has no log."""
    if said is None:
        return None
    kind, slash, name = said.rpartition("/")
    if slash and kind not in (_TASK, "tasks"):
        hint = f"odfctl events --for {said} shows its events; odfctl logs --part PART shows lines of a part"
        raise Usage(f"a {kind[:40]} has no log: tasks have", hint=hint)
    return name


def _text(line: wire.LogLineView) -> str:
    values = " ".join(f"{key}={_value(value)}" for key, value in line.values.items())
    parts = (formatting.moment(line.time), f"{line.level:<7}", line.part, line.task and f"[{line.task}]", line.event)
    return clean("  ".join(filter(None, (*parts, values))).rstrip(), WHOLE)


def _value(value: object) -> str:
    return value if isinstance(value, str) and value and " " not in value else json.dumps(value, ensure_ascii=False)

"""``gap``: says what a source let go of before it was taken, and accepts that it is lost."""

from __future__ import annotations

import argparse

from odfd.cli import formatting
from odfd.cli.command import REF, YES, Commands, argument, confirm
from odfd.cli.progress import submit
from odfd.cli.session import Session
from odfd.cli.table import TableColumn, render
from odfd.control import calls, wire
from odfd.control.client import Answer
from odfd.errors import ExitCode

commands = Commands()
gap = commands.group(
    "gap",
    description="A gap is what a topic's broker let go of before it was taken. It stops each pull, until a person"
    " accepts that it is lost. Its name is a hash of what is lost, so nobody accepts more than was shown. The chain"
    " says what is missing.",
    example="show nyc.flights",
)


@gap.add(
    "show",
    REF,
    help="what the source let go of before it was taken",
    description="Ask the source what it let go of before it was taken. The exit code is 1 if something is lost.",
    example="nyc.flights",
)
def _show(session: Session, args: argparse.Namespace) -> int:
    found = _submit(session, args, None)
    session.answer(found, _text)
    return int(ExitCode.NO) if found.value.name is not None else 0


@gap.add(
    "accept",
    REF,
    argument("name", metavar="GAP", nargs="?", help="name of the gap (default: that which is shown, and confirmed)"),
    YES,
    help="go on without it",
    description="Say what is lost, and go on without it. Refused if nothing is lost, or something else than the name"
    " says. Repeated, it has one effect.",
    example="nyc.flights 3f0c9b7a61d2e845",
)
def _accept(session: Session, args: argparse.Namespace) -> None:
    name = args.name
    if name is None:
        found = _submit(session, args, None).value
        name = found.name or "none"
        if found.name is not None and not args.yes:
            session.remark(_text(found))
            confirm(f"Go on without {_count(found)} of {args.ref}?", "nothing was accepted")
    session.answer(_submit(session, args, name), _text)


def _submit(session: Session, args: argparse.Namespace, name: str | None) -> Answer[wire.GapView]:
    request = wire.GapRequest(accept=name)
    return submit(session, calls.gaps_run(args.ref, request), wire.GapView)


def _count(row: wire.GapView) -> str:
    return formatting.plural(row.count, "offset")


def _text(row: wire.GapView) -> str:
    if row.name is None:
        return f"the source of {row.dataset} has all that was not taken"
    said = (
        f"accepted at {row.time}" if row.accepted else f"odfctl gap accept {row.dataset} {row.name} goes on without it"
    )
    return f"gap {row.name} of topic {row.topic}: {_count(row)}; {said}\n{render(_COLUMNS, row.lost)}"


_COLUMNS = (
    TableColumn[wire.LostRange]("PARTITION", lambda row: str(row.partition), right=True),
    TableColumn[wire.LostRange]("FROM", lambda row: str(row.first), right=True),
    TableColumn[wire.LostRange]("TO", lambda row: str(row.last), right=True),
    TableColumn[wire.LostRange]("OFFSETS", lambda row: formatting.count(row.count), right=True),
    TableColumn[wire.LostRange]("TOPIC ID", lambda row: row.topic_id),
)

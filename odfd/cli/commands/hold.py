"""``hold``: keeps the history of datasets unchanged while a reader needs it."""

from __future__ import annotations

import argparse

from odfd.cli.command import REF, Commands, argument, seconds
from odfd.cli.formatting import NOTHING, moment
from odfd.cli.session import Session
from odfd.cli.table import TableColumn, render
from odfd.control import calls, wire

commands = Commands()
hold = commands.group(
    "hold",
    description="A hold keeps the history of a dataset for a reader. Meanwhile the dataset is not reset, compacted or "
    "deleted, and a mirror neither follows a rewritten history nor drops data. It expires unless it is "
    "renewed.",
    example="take nyc.flights --for 1h",
)
_FOR = argument("--for", dest="span", metavar="SPAN", help="time until it expires: 1s to 24h (15min)")
_ID = argument("id", metavar="ID")
_FENCE = argument("--fence", type=int, metavar="N", help="of an owned hold: the number with which it was taken")


@hold.add(
    "take",
    REF,
    argument(
        "--at", metavar="TIME", help="hold the dataset as of this time, which must be complete (default: as it is now)"
    ),
    _FOR,
    argument("--note", default="", metavar="TEXT", help="a note: who holds it, or for what"),
    argument("--owner", default="", metavar="NAME", help="own it by this name: it lasts until it is released"),
    help="hold a dataset",
    description="Hold a dataset as it is now, or at a complete time (odfctl advance). odfctl sql --pin reads the pin "
    "in the JSON of the answer. A hold with an owner does not expire. Taken again for the same owner, it keeps its "
    "position and gets a greater fence; earlier processes of the owner are refused.",
    example="nyc.flights --at 2024-05-01T12:00:00Z --for 1h --note 'monthly report'",
)
def _take(session: Session, args: argparse.Namespace) -> None:
    request = wire.HoldRequest(ref=args.ref, at=args.at, seconds=_seconds(args), note=args.note, owner=args.owner)
    session.answer(session.client.do(calls.holds_take(request)), _table)


@hold.add(
    "renew",
    _ID,
    _FOR,
    _FENCE,
    argument("--at", metavar="TIME", help="of an owned hold: the later time from which on it holds"),
    help="extend a hold",
    description="Extend a hold, or move an owned one forward.",
    example="1f9c0a77e2d4b863",
)
def _renew(session: Session, args: argparse.Namespace) -> None:
    request = wire.HoldRenewal(seconds=_seconds(args), fence=args.fence, at=args.at)
    session.answer(session.client.do(calls.holds_renew(args.id, request)), _table)


@hold.add("release", _ID, _FENCE, help="end a hold", description="End a hold.", example="1f9c0a77e2d4b863")
def _release(session: Session, args: argparse.Namespace) -> None:
    gone = session.client.do(calls.holds_release(args.id, fence=args.fence))
    session.answer(gone, lambda row: f"{row.dataset} is not held by {row.id} any more")


@hold.add(
    "list",
    argument("ref", metavar="NAME", nargs="?", help="only holds of this dataset"),
    help="list holds",
)
def _list(session: Session, args: argparse.Namespace) -> None:
    found = session.client.do(calls.holds_list(dataset=args.ref))
    session.answer(found, lambda rows: render(_COLUMNS, rows))
    if not found.value:
        session.remark("nothing is held")


def _seconds(args: argparse.Namespace) -> int | None:
    return None if args.span is None else round(seconds(args.span))


def _expires(row: wire.HoldView) -> str:
    return moment(row.expires_at) if row.expires_at else "when it is released"


_COLUMNS = (
    TableColumn[wire.HoldView]("HOLD", lambda row: row.id),
    TableColumn[wire.HoldView]("DATASET", lambda row: row.dataset),
    TableColumn[wire.HoldView]("AT", lambda row: row.time),
    TableColumn[wire.HoldView]("BLOCK", lambda row: f"#{row.pin.sequence_number}" if row.pin else NOTHING, right=True),
    TableColumn[wire.HoldView](
        "EXPIRES", lambda row: moment(row.expires_at) if row.expires_at else "when it is released"
    ),
    TableColumn[wire.HoldView]("OWNER", lambda row: f"{row.owner} {row.fence}" if row.owner else NOTHING),
    TableColumn[wire.HoldView]("NOTE", lambda row: row.note),
)


def _table(row: wire.HoldView) -> str:
    return render(_COLUMNS, [row])

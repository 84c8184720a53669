"""``correct``: changes a row of a ledger, or retracts it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, Final

from odfd.cli import formatting
from odfd.cli.command import REF, Commands, argument
from odfd.cli.progress import submit
from odfd.cli.session import Session
from odfd.cli.table import Stack, TableColumn, render
from odfd.control import calls, wire
from odfd.errors import Usage

_SAYS: Final = {
    "corrected": ("a record is corrected", "a record would be corrected"),
    "retracted": ("a record is taken back", "a record would be taken back"),
    "unchanged": ("the record says so already", "the record says so already"),
}
"""Text by outcome: when done, and for a dry run."""


commands = Commands()


@commands.add(
    "correct",
    REF,
    argument(
        "--key",
        action="append",
        default=[],
        metavar="COLUMN=VALUE",
        help="value of each primary-key column; other columns too if several rows have the key",
    ),
    argument("--set", action="append", default=[], metavar="COLUMN=VALUE", help="new value of a column"),
    argument("--null", action="append", default=[], metavar="COLUMN", help="set a column to null"),
    argument("--retract", action="store_true", help="retract the row"),
    argument("--ahead", action="store_true", help="allow a time more than a day ahead of the clock"),
    argument("--dry-run", action="store_true", help="print what would be written, and write nothing"),
    description="Correct one row of a dataset with the ledger strategy, found by its key. The "
    "correction adds the old and the new row; history "
    "stays. A later ingest of the old values does not undo it. Derived datasets apply it with their next "
    "pull, or say what you have to do first.",
    example="nyc.flights --key event_time=2013-01-01T10:00:00Z --key carrier=UA --set delay=12",
)
def _correct(session: Session, args: argparse.Namespace) -> None:
    values: dict[str, str | None] = dict(_pairs("--set", args.set))
    for name in args.null:
        if name in values:
            raise Usage(f"column {name!r} is both set and made null", hint="say one of them")
        values[name] = None
    if not args.key:
        raise Usage(
            "say which row: --key COLUMN=VALUE for each column of the primary key",
            hint="odfctl get dataset NAME -o manifest shows the key",
        )
    if bool(values) == args.retract:
        raise Usage("say what becomes of the row: --set COLUMN=VALUE, --null COLUMN, or --retract")
    key = dict(_pairs("--key", args.key))
    request = wire.CorrectRequest(key=key, values=values, retract=args.retract, ahead=args.ahead, dry_run=args.dry_run)
    done = submit(session, calls.flow_correct(args.ref, request), wire.CorrectResult)
    session.answer(done, _result_text)


def _pairs(option: str, texts: Sequence[str]) -> list[tuple[str, str]]:
    found: dict[str, str] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise Usage(f"{option} {text!r} names no column and value", hint=f"write {option} COLUMN=VALUE")
        if name in found:
            raise Usage(f"{option} names column {name!r} twice", hint="say one value")
        found[name] = value
    return list(found.items())


def _result_text(done: wire.CorrectResult) -> str:
    before, after = done.before, done.after
    columns: list[TableColumn[dict[str, Any]]] = [TableColumn("", lambda row: row["\0"])]
    for name, value in before.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        columns.append(
            TableColumn(
                name,
                lambda row, name=name: formatting.cell(row.get(name)),  # type: ignore[misc]
                right=number,
                most=40,
            )
        )
    rows = [{"\0": "-", **before}]
    if after is not None and done.outcome != "unchanged":
        rows.append({"\0": "+", **after})
    outcome = _SAYS[done.outcome][done.dry_run]
    return Stack([f"{done.ref}: {outcome}", render(columns, rows)])

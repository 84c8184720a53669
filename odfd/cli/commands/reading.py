"""``log``, ``tail``: show the blocks and the last rows of a dataset."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any, Final

from odfd.cli import formatting
from odfd.cli.command import REF, Commands, argument
from odfd.cli.commands.rendition import RENDITION, read_of
from odfd.cli.dataset_text import rows_text
from odfd.cli.session import Session
from odfd.cli.sql.read_options import TIMES, is_cut, last_rows, source, without_places
from odfd.cli.table import TableColumn, render
from odfd.control import calls, wire
from odfd.errors import ExitCode, Usage
from odfd.usage import at_most

MOST_ROWS: Final = 10_000
"""Rows of one answer of the daemon."""


commands = Commands()


_SHARD: TableColumn[wire.BlockView] = TableColumn("SHARD", lambda row: row.shard or "-")
_BLOCKS: tuple[TableColumn[wire.BlockView], ...] = (
    TableColumn("BLOCK", lambda row: f"#{row.sequence_number}", right=True),
    TableColumn("HASH", lambda row: formatting.digest(row.hash)),
    TableColumn("TIME", lambda row: formatting.moment(row.system_time)),
    TableColumn("EVENT", lambda row: row.event),
    TableColumn("", lambda row: "; ".join(filter(None, (row.summary, rows_text(row.rows)))), most=200),
)


@commands.add(
    "log",
    REF,
    argument("--kind", action="append", default=[], metavar="EVENT", help="only events of this kind; repeatable"),
    argument("--limit", type=at_most(MOST_ROWS), default=20, metavar="N", help="number of blocks (20)"),
    argument("--before", metavar="BLOCK", help="only blocks that come after this one: its number, or its hash"),
    argument("--epoch", type=int, metavar="N", help="blocks that a later epoch dropped, if the node keeps them"),
    RENDITION,
    description="Blocks of a dataset, newest first.",
    example="nyc.flights --kind AddData --limit 3",
)
def _log(session: Session, args: argparse.Namespace) -> None:
    ref = read_of(session, args.ref, args)
    found = calls.datasets_log(ref, kind=args.kind, limit=args.limit, before=args.before, epoch=args.epoch)
    blocks = session.client.do(found)
    columns = (_SHARD, *_BLOCKS) if any(row.shard is not None for row in blocks.value) else _BLOCKS
    session.answer(blocks, lambda rows: render(columns, rows))


@commands.add(
    "tail",
    REF,
    *TIMES,
    argument("-n", "--records", type=at_most(MOST_ROWS), default=10, metavar="N", help="number of records (10)"),
    description="Print the last records of a dataset, by offset, now or as of another time.",
    example="nyc.flights.delays -n 5\nweather --as-of 2024-05-01",
)
def _tail(session: Session, args: argparse.Namespace) -> int:
    if is_cut(args):
        return _tail_of(session, args)
    records = session.client.do(calls.datasets_tail(args.ref, limit=args.records))
    names = [column.name for column in records.value.columns]
    if session.output == "ndjson":
        for row in records.value.rows:
            session.line(dict(zip(names, row, strict=True)), "")
    else:
        session.answer(records, _rows)
    for remark in remarks_on(records.value):
        session.remark(remark)
    return ExitCode.OK


def _tail_of(session: Session, args: argparse.Namespace) -> int:
    """Runs the tail as a query, with the same remarks on its sources."""
    from odfd.cli.sql.formats import answer, remarks_of

    if session.output == "yaml":
        raise Usage("no yaml here", hint="-o json")
    request = wire.QueryRequest(sql=last_rows(source(args.ref, args), args.records))
    with without_places():
        answered = answer(session.client, request, session.output)
    for line in remarks_of(answered.head, answered.rows):
        session.remark(line)
    return ExitCode.OK


def remarks_on(records: wire.Records) -> Iterator[str]:
    """Yields remarks for a reader of the rows, or that there are none."""
    if not records.rows:
        yield "no records yet"
    if records.dataset is not None and (doubt := doubt_of(records.dataset)):
        yield doubt
    for pin in records.dataset.unheld if records.dataset is not None else ():
        yield pin.text


def doubt_of(dataset: wire.DatasetView) -> str | None:
    """Returns a warning if not all of the rows, which are shown as published, may be relied on."""
    rely = dataset.rely_on
    if rely is None or rely.blocks >= dataset.blocks:
        return None
    known = f"the first {rely.blocks}" if rely.blocks else "none"
    why = f" ({rely.fact})" if rely.fact else ""
    blocks = formatting.plural(dataset.blocks, "block")
    return f"Reach for use: {known} of {blocks}{why}: odfctl trust show {dataset.name}"


def _rows(records: wire.Records) -> str:
    columns: tuple[TableColumn[tuple[Any, ...]], ...] = tuple(
        TableColumn(
            column.name,
            lambda row, place=place: formatting.cell(row[place]),  # type: ignore[misc]
            right=column.type.startswith(("Int", "UInt", "Float", "Decimal")),
            most=40,
        )
        for place, column in enumerate(records.columns)
    )
    return render(columns, records.rows)

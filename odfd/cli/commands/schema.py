"""``schema``: shows the columns of a dataset. ``schema alter``: shows what an alteration does, and carries it out."""

from __future__ import annotations

import argparse
from typing import Final

from odfd.cli import formatting
from odfd.cli.command import Commands, argument
from odfd.cli.commands.apply import apply_texts
from odfd.cli.dataset_text import schema_table
from odfd.cli.progress import submit
from odfd.cli.session import Session
from odfd.cli.table import clean
from odfd.control import calls, wire
from odfd.errors import ExitCode, Usage

commands = Commands()
_ACTIONS: Final = ("add", "widen", "rename", "drop")
_FORM: Final = "odfctl schema alter NAME add 'city STRING' | widen 'n BIGINT' | rename OLD NEW | drop COLUMN"


@commands.add(
    "schema",
    argument("ref", metavar="REF"),
    argument("words", nargs="*", metavar="…", help=argparse.SUPPRESS),
    description="Print the columns of a dataset and their types. With -o yaml, also its DataSchema manifest.\n\n"
    f"{_FORM}\n\n"
    "Alters the columns of a source dataset: odfctl schema alter -h",
    example="nyc.flights",
)
def _schema(session: Session, args: argparse.Namespace) -> int:
    if args.words:
        raise Usage("odfctl schema NAME shows columns, and takes no other argument", hint=_FORM)
    schema = session.client.do(calls.datasets_schema(args.ref))
    session.answer(schema, lambda value: schema_table(value.fields))
    return ExitCode.OK


@commands.add(
    "schema alter",
    argument("ref", metavar="NAME"),
    argument("action", nargs="?", metavar="|".join(_ACTIONS)),
    argument("columns", nargs="*", metavar="COLUMN"),
    argument("--as", dest="derived", metavar="NAME", help="the dataset to derive, for widen, rename and drop"),
    argument("--query", metavar="SQL", help="of add: the last query of the source's preprocess from now on"),
    argument("--computed", action="store_true", help="of add: the query computes the columns, files do not have them"),
    argument("-y", "--yes", action="store_true", help="do it; without it the plan is shown and nothing changes"),
    description=f"{_FORM}\n\n"
    "Alters the columns of a source dataset. Optional columns are added to it, and to the read step of its sources.\n"
    "For changes that a chain cannot have (another name, a wider type, a column less) --as NAME derives a dataset.",
    example="nyc.flights add 'gate STRING' 'taxi_minutes INT' --yes\n"
    "nyc.flights rename dest destination --as nyc.flights.v2 --yes",
)
def _alter(session: Session, args: argparse.Namespace) -> int:
    if args.action not in _ACTIONS or not args.columns:
        raise Usage(f"name a change ({', '.join(_ACTIONS)}) and columns", hint=_FORM)
    request = wire.AlterSchemaRequest(
        action=args.action,
        columns=tuple(args.columns),
        query=args.query,
        computed=args.computed,
        derived=args.derived,
        dry_run=not args.yes,
    )
    done = submit(session, calls.flow_alter_schema(args.ref, request), wire.AlterSchemaResult)
    if args.yes and done.value.manifest is not None:
        return apply_texts(session, (wire.ManifestText(source=args.derived, text=done.value.manifest),))
    session.answer(done, plan_text)
    if not args.yes:
        session.remark("nothing was changed; --yes does it")
    return ExitCode.OK


def plan_text(done: wire.AlterSchemaResult) -> str:
    is_done = done.outcome == "altered"
    if done.manifest is not None:
        columns = schema_table(done.columns)
        said = f"{done.ref} stays as it is; the dataset derived from it would have\n{columns}"
        return f"{_course(done)}\n{said}\n\n{done.manifest.rstrip()}"
    names = ", ".join(f"{column.name} {column.type}" for column in done.added)
    records = formatting.plural(done.records, "record")
    blocks = formatting.plural(len(done.events), "block")
    lines = [_course(done)]
    lines += [f"{done.ref}: {names} {'added' if is_done else 'would be added'}"]
    lines.append(f"  rows so far    {records}, null there; their bytes and hashes stay")
    lines.extend(f"  {'rows to come' if at == 0 else '':<13}  {remark}" for at, remark in enumerate(done.remarks))
    if done.derivations:
        lines.append(f"  derivations    none breaks: {', '.join(done.derivations)} know the columns of their day;")
        lines.append("                 declare a query again, and it sees the new ones")
    lines.append(f"  mirrors        take {blocks}: {', '.join(done.events)}; older ones read as before")
    if is_done:
        lines.append(f"  head           {formatting.digest(done.head)}")
    return "\n".join(lines)


def _course(done: wire.AlterSchemaResult) -> str:
    return f"{done.course}: {clean(done.course_text, 1000)}"

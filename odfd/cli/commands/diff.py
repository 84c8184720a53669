"""``diff``: shows the rows by which two cuts or two datasets differ; with ``-f``, what an apply would change."""

from __future__ import annotations

import argparse
from typing import Final

from chain.errors import Invalid
from odfd.cli.command import Commands, argument
from odfd.cli.commands.apply import show_changes
from odfd.cli.session import FORMATS as SESSION_FORMATS
from odfd.cli.session import Session
from odfd.cli.sql.formats import FORMATS, answer, check_form, remarks_of
from odfd.cli.sql.read_options import difference, ref_text, without_places
from odfd.control import calls, wire
from odfd.errors import ExitCode, Usage

_SYSTEM: Final = 3
"""Number of system columns, which are the first."""
_MOST_TOLD: Final = 5
"""Differences that a message tells."""
commands = Commands()


@commands.add(
    "diff",
    argument("refs", nargs="*", metavar="REF[@CUT]", help="two datasets, or two cuts of one"),
    argument(
        "-f",
        "--file",
        action="append",
        default=[],
        metavar="FILE|DIR|URL|-",
        help="a file, folder or URL with manifests; repeatable",
    ),
    argument("--prune", metavar="SELECTOR", help="with -f: as of odfctl apply"),
    argument("--current", action="store_true", help="compare what holds now, instead of the logs"),
    argument("--values", action="store_true", help="ignore offset, op and system_time"),
    argument("-o", "--output", choices=FORMATS, default=argparse.SUPPRESS, metavar="FORMAT", help=", ".join(FORMATS)),
    description="Print the rows that only one of two has: - of the first, + of the second. Each is a dataset, also at "
    "a block (weather@12, weather@f1620…) or at a time (weather@2024-05-01). With -f: print what applying "
    "manifests would change, and change nothing. Ends with 1 when there is a difference.",
    example="weather@12 weather\n--current weather@2024-05-01 weather\n-f datasets/",
)
def _diff(session: Session, args: argparse.Namespace) -> int:
    if len(args.refs) != (0 if args.file else 2) or (args.prune is not None and not args.file):
        raise Usage(
            "give two datasets, or manifests with -f", hint="odfctl diff weather@12 weather, odfctl diff -f FILE"
        )
    if args.file:
        return _changes(session, args)
    check_form(args.output)
    one, other = (_source(text, current=args.current) for text in args.refs)
    _check_columns(session, *map(_ref, args.refs), values=args.values)
    apart = _apart(session, args.refs[0]) if args.values else ""
    request = wire.QueryRequest(sql=difference(one, other, apart=apart))
    with without_places():
        answered = answer(session.client, request, args.output)
    for line in remarks_of(answered.head, answered.rows):
        session.remark(line)
    return ExitCode.NO if answered.rows else ExitCode.OK


def _changes(session: Session, args: argparse.Namespace) -> int:
    if args.output not in SESSION_FORMATS:
        raise Usage(f"changes are not written as {args.output}", hint=", ".join(SESSION_FORMATS))
    return show_changes(session, args.file, args.prune)


def _source(text: str, *, current: bool) -> str:
    ref, found, cut = text.rpartition("@")
    if not found:
        return ref_text(text, current=current)
    if not ref or not cut:
        raise Usage(f"not a dataset at a cut: {text!r}", hint="like weather@12 or weather@2024-05-01")
    if cut.lstrip("#").isdecimal() or cut.startswith("f1620"):
        return ref_text(ref, current=current, at_block=cut)
    return ref_text(ref, current=current, as_of=cut)


def _ref(text: str) -> str:
    return text.rpartition("@")[0] or text


def _check_columns(session: Session, one: str, other: str, *, values: bool) -> None:
    """Raises Invalid for two datasets whose columns differ; those of one dataset only grow."""
    if one == other:
        return
    first, second = (
        {field.name: field.type for field in _fields(session, ref)[_SYSTEM if values else 0 :]} for ref in (one, other)
    )
    differences = [f"only {one} has {name}" for name in first if name not in second]
    differences += [f"only {other} has {name}" for name in second if name not in first]
    both = [name for name in first if name in second]
    differences += [f"{name} is {first[name]} and {second[name]}" for name in both if first[name] != second[name]]
    if differences:
        more = len(differences) - _MOST_TOLD
        raise Invalid(
            f"{one} and {other} have different columns: {'; '.join(differences[:_MOST_TOLD])}"
            + (f", and {more} more" if more > 0 else ""),
            rule="diff-columns",
            hint="compare some of them in a query: odfctl sql 'select x from one except select x from other'",
        )


def _fields(session: Session, ref: str) -> tuple[wire.Column, ...]:
    return session.client.do(calls.datasets_schema(ref)).value.fields


def _apart(session: Session, text: str) -> str:
    """Returns an ``EXCLUDE`` of the dataset's system columns."""
    names = ", ".join('"' + field.name.replace('"', '""') + '"' for field in _fields(session, _ref(text))[:_SYSTEM])
    return f" EXCLUDE ({names})"

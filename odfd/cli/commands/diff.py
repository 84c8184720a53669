"""``diff``: rows by which two cuts of a dataset, or two datasets, differ."""

from __future__ import annotations

import argparse

from odfd.cli.parsers import Subparsers
from odfd.cli.session import Session
from odfd.cli.sql.reads import difference, named
from odfd.cli.sql.writing import FORMATS, answer, check_form, told
from odfd.control import wire
from odfd.control.client import part
from odfd.errors import ExitCode, Usage


def register(subparsers: Subparsers) -> None:
    diff = subparsers.add_parser(
        "diff",
        help="rows by which two of them differ",
        description="Rows that are in one of two alone: - of the first, + of the second. Each is a dataset, or one at\n"
        "a block (weather@12, weather@f1620…) or at a time (weather@2024-05-01). Ends with 1 when they differ.",
        epilog="example:  odfctl diff weather@12 weather\n          odfctl diff --current weather@2024-05-01 weather",
    )
    diff.add_argument("one", metavar="REF[@CUT]")
    diff.add_argument("other", metavar="REF[@CUT]")
    diff.add_argument("--current", action="store_true", help="what holds of them, instead of their logs")
    diff.add_argument(
        "--values", action="store_true", help="leave offset, op and system_time out: what rows say, and no more"
    )
    diff.add_argument(
        "-o", "--output", choices=FORMATS, default=argparse.SUPPRESS, metavar="FORMAT", help=", ".join(FORMATS)
    )
    diff.add_argument("--socket", metavar="PATH", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    for short, long in (("-q", "--quiet"), ("-v", "--verbose")):
        diff.add_argument(short, long, action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    diff.set_defaults(run=_diff)


def _diff(args: argparse.Namespace) -> int:
    check_form(args.output)
    session = Session(args)
    one, other = (_source(text, current=args.current) for text in (args.one, args.other))
    apart = _apart(session, args) if args.values else ""
    request = wire.QueryRequest(sql=difference(one, other, apart=apart))
    answered = answer(session.client, request, args.output)
    for line in told(answered.head, answered.rows):
        session.remark(line)
    return ExitCode.NO if answered.rows else ExitCode.OK


def _source(text: str, *, current: bool) -> str:
    ref, found, cut = text.rpartition("@")
    if not found:
        return named(text, current=current)
    if not ref or not cut:
        raise Usage(f"not a dataset at a cut: {text!r}", hint="like weather@12 or weather@2024-05-01")
    if cut.lstrip("#").isdecimal() or cut.startswith("f1620"):
        return named(ref, current=current, at_block=cut)
    return named(ref, current=current, as_of=cut)


def _apart(session: Session, args: argparse.Namespace) -> str:
    """Its system columns, which are the first three."""
    ref = args.one.rpartition("@")[0] or args.one
    fields = session.client.get(f"/datasets/{part(ref)}/schema", wire.Schema).value.fields
    names = ", ".join('"' + field.name.replace('"', '""') + '"' for field in fields[:3])
    return f" EXCLUDE ({names})"

"""``source``: pushes to the endpoint of a Source, and shows and drops the pushes that wait there."""

from __future__ import annotations

import argparse
import sys

from odfd.cli import formatting
from odfd.cli.command import Commands, argument
from odfd.cli.files import open_file
from odfd.cli.session import Session
from odfd.control import calls, wire
from odfd.errors import Usage

commands = Commands()
source = commands.group(
    "source",
    description="A Source with the ingress RestEndpoint is pushed to. What was pushed waits until the datasets that "
    "take from the Source have it.",
    example="push sensor.temp readings.ndjson",
)
_NAME = argument("source", metavar="SOURCE")


@source.add(
    "push",
    _NAME,
    argument("file", nargs="?", default="-", metavar="FILE", help="standard input, if it is - or not given"),
    argument("--id", metavar="ID", help="count this push once, however often it is repeated"),
    help="push records to a Source",
    description="Push records to the endpoint of a Source, in the format of its read step.",
    example="sensor.temp readings.ndjson",
)
def _push(session: Session, args: argparse.Namespace) -> None:
    call = calls.endpoints_push(args.source, id_=args.id)
    if args.file == "-":
        receipt = session.client.send(call, sys.stdin.buffer)
    else:
        with open_file(args.file) as file:
            receipt = session.client.send(call, file)
    session.answer(receipt, _receipt)


def _receipt(row: wire.PushReceipt) -> str:
    counted = formatting.plural(row.records, "record")
    if row.repeated:
        return f"push #{row.number} of {row.source} came before, with {counted}"
    lasts = "" if row.durable else "; it may be lost until a dataset takes it"
    return f"push #{row.number} of {row.source}: {counted}, {formatting.size(row.bytes)}{lasts}"


@source.add("show", _NAME, help="show what waits at a Source", example="sensor.temp")
def _show(session: Session, args: argparse.Namespace) -> None:
    session.answer(session.client.do(calls.endpoints_show(args.source)), _view)


def _view(row: wire.EndpointView) -> str:
    lines = [f"POST {row.path}"]
    if row.pushes:
        waits = f"{formatting.plural(row.records, 'record')} in {formatting.plural(row.pushes, 'push', 'pushes')}"
        lines.append(f"{waits}, {formatting.size(row.bytes)}: #{row.first} to #{row.last}, from {row.oldest_at} on")
    else:
        lines.append("nothing waits")
    if row.dropped:
        lines.append(f"{formatting.plural(row.dropped, 'record')} dropped before a dataset had them")
    return "\n".join(lines)


@source.add(
    "drop",
    _NAME,
    argument("number", nargs="?", type=int, metavar="NUMBER", help="of the push"),
    argument("--all", action="store_true", help="drop all that waits"),
    help="drop a push that no dataset can take",
    description="Drop a push that waits, such as one that a dataset cannot take, or all of them. No dataset gets its "
    "records.",
    example="sensor.temp 7",
)
def _drop(session: Session, args: argparse.Namespace) -> None:
    if (args.number is None) != args.all:
        raise Usage("name the number of a push, or --all", hint=f"odfctl source show {args.source}")
    session.answer(session.client.do(calls.endpoints_drop(args.source, number=args.number)), _view)

"""``flow``: pauses and resumes what is pulled by itself. ``apply``, ``get`` and ``delete`` do the rest."""

from __future__ import annotations

import argparse

from odfd.cli.parsers import Subparsers
from odfd.cli.session import Session
from odfd.control import wire
from odfd.control.client import part
from odfd.errors import ExitCode


def register(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "flow",
        help="rest or go on with what is pulled by itself",
        description="A flow pulls a dataset when its schedule says so, or when other datasets have new data. Derived"
        " datasets that no flow names follow their inputs, and go by their own name here. odfctl get flows lists all.",
        epilog="example:  odfctl flow pause fx-daily",
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True, parser_class=type(parser))
    for word, run, told in (
        ("pause", _pause, "run it no more for now, over restarts too; what passes meanwhile is not caught up"),
        ("resume", _resume, "go on with one that was paused"),
    ):
        action = actions.add_parser(
            word, help=told, description=told.capitalize() + ".", epilog=f"example:  odfctl flow {word} fx-daily"
        )
        action.add_argument("name", metavar="NAME", help="of the flow, or of the derived dataset")
        action.set_defaults(run=run)


def _pause(args: argparse.Namespace) -> int:
    session = Session(args)
    flow = session.client.put(f"/flows/{part(args.name)}/pause", wire.FlowView)
    session.answer(flow, lambda row: f"{row.name} is paused")
    return ExitCode.OK


def _resume(args: argparse.Namespace) -> int:
    session = Session(args)
    flow = session.client.delete(f"/flows/{part(args.name)}/pause", wire.FlowView)
    session.answer(flow, lambda row: f"{row.name} goes on" + (f", next at {row.next}" if row.next else ""))
    return ExitCode.OK

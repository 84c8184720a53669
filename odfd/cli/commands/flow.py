"""``flow``: pauses and resumes what is pulled by itself. ``apply``, ``get`` and ``delete`` do the rest."""

from __future__ import annotations

import argparse

from odfd.cli.command import Commands, argument
from odfd.cli.session import Session
from odfd.control import wire
from odfd.control.client import part

commands = Commands()
flow = commands.group(
    "flow",
    description="A flow pulls a dataset when its schedule says so, or when other datasets have new data. Derived"
    " datasets that no flow names follow their inputs, and go by their own name here. odfctl get flows lists all.",
    example="pause fx-daily",
)


_NAME = argument("name", metavar="NAME", help="of the flow, or of the derived dataset")


@flow.add(
    "pause",
    _NAME,
    help="run it no more for now, over restarts too; what passes meanwhile is not caught up",
    description="Run it no more for now, over restarts too; what passes meanwhile is not caught up.",
    example="fx-daily",
)
def _pause(session: Session, args: argparse.Namespace) -> None:
    moved = session.client.put(f"/flows/{part(args.name)}/pause", wire.FlowView)
    session.answer(moved, lambda row: f"{row.name} is paused")


@flow.add(
    "resume",
    _NAME,
    help="go on with one that was paused",
    description="Go on with one that was paused.",
    example="fx-daily",
)
def _resume(session: Session, args: argparse.Namespace) -> None:
    moved = session.client.delete(f"/flows/{part(args.name)}/pause", wire.FlowView)
    session.answer(moved, lambda row: f"{row.name} goes on" + (f", next at {row.next}" if row.next else ""))

"""``top``: shows a live view of the node on a terminal."""

from __future__ import annotations

import argparse
import sys
from typing import Final

from odfd import output
from odfd.cli.command import Commands, argument, seconds
from odfd.cli.session import Session
from odfd.errors import Usage
from odfd.runtime.extensions import check_client

SOONEST: Final = 0.5
"""Least seconds between two updates, each of which the node answers."""

commands = Commands()


@commands.add(
    "top",
    argument("--every", metavar="D", default="2s", help="time between updates (2s)"),
    description="Show the node live: what needs the operator, tasks and mirrors with their rates, and peers. It "
    "changes nothing. Keys: q quits, space pauses or resumes, r updates now, 1 to 4 select a table, Tab the next.",
    example="--every 5s",
)
def _top(session: Session, args: argparse.Namespace) -> None:
    if session.output != "table" or not (output.is_terminal() and sys.stdin.isatty()):
        raise Usage("odfctl top needs a terminal", hint="for programs: odfctl status -o json, odfctl get tasks -o json")
    if not output.draws():
        hint = "in a terminal that moves its cursor; else odfctl watch, and odfctl get tasks"
        raise Usage("odfctl top cannot draw here: TERM is dumb", hint=hint)
    every = seconds(args.every)
    if every < SOONEST:
        raise Usage(f"{args.every} is too often", hint=f"--every takes {SOONEST:g}s and more")
    check_client("textual", "odfctl top needs", "top")
    from odfd.cli.top.polling import NodePoller

    looker = NodePoller(session.client, session.clock)
    looker.look()
    from odfd.cli.top.app import TopApp

    TopApp(looker.look, session.clock.now, every).run()

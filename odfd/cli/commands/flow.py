"""``flow``: pauses and resumes flows, and runs them now or for past times."""

from __future__ import annotations

import argparse

from odfd.cli import formatting
from odfd.cli.command import Commands, argument
from odfd.cli.kinds import FLOW, OR_PATTERN, one_or_several, things_meant
from odfd.cli.session import Session
from odfd.control import calls, wire
from odfd.resources.registry import state

commands = Commands()
flow = commands.group(
    "flow",
    description="A flow pulls a dataset by its schedule, or when other datasets have new data. A derived dataset "
    "without a flow follows its inputs, under its own name here. odfctl get flows lists all.",
    example="pause fx-daily",
)
_NAME = argument("name", metavar="NAME", help=f"name of the flow, or of the derived dataset, {OR_PATTERN}")


@flow.add(
    "pause",
    _NAME,
    help="pause a flow; runs that are missed meanwhile are not caught up",
    description="Pause a flow, also over restarts. Runs that are missed meanwhile are not caught up.",
    example="fx-daily",
)
def _pause(session: Session, args: argparse.Namespace) -> None:
    moved = [session.client.do(calls.flows_pause(name)) for name in things_meant(session, FLOW, [args.name])]
    session.answer(one_or_several(moved), lambda _: "\n".join(f"{each.value.name} is paused" for each in moved))


@flow.add(
    "resume",
    _NAME,
    help="resume a paused flow",
    description="Resume a paused flow.",
    example="fx-daily",
)
def _resume(session: Session, args: argparse.Namespace) -> None:
    moved = [session.client.do(calls.flows_resume(name)) for name in things_meant(session, FLOW, [args.name])]
    session.answer(one_or_several(moved), lambda _: "\n".join(_resumed_text(each.value) for each in moved))


def _resumed_text(row: wire.ResourceManifest) -> str:
    following = state(row).get("next")
    return f"{row.name} resumed" + (f", next at {following}" if following else "")


@flow.add(
    "run",
    argument("name", metavar="NAME", help="name of a flow with a trigger of kind Manual"),
    argument("--target", metavar="DATASET", help="of a flow of many datasets: this one only"),
    help="run a flow now",
    description="Run a flow as soon as it may, whatever else causes runs of it; a paused one when it continues. A"
    " failed run that waits to be tried again is tried at once.",
    example="fx-daily",
)
def _run(session: Session, args: argparse.Namespace) -> None:
    request = wire.FlowRunRequest(target=args.target)
    told = session.client.do(calls.flows_run(args.name, request))
    session.answer(told, lambda row: f"{row.name} runs")


@flow.add(
    "backfill",
    argument("name", metavar="NAME", help="name of a flow with a schedule"),
    argument("--from", dest="first", metavar="TIME", required=True, help="the first past time to run for"),
    argument("--to", metavar="TIME", required=True, help="the last; times after now are left out"),
    argument("--target", metavar="DATASET", help="of a flow of many datasets: this one only"),
    help="run a flow for past times of its schedule",
    description="Run a flow once for each time of its schedule in a range for which it did not run, the oldest first: "
    "at most 1,000 at once, and each once only, over restarts too.",
    example="fx-daily --from 2024-05-01T00:00:00Z --to 2024-05-31T23:59:59Z",
)
def _backfill(session: Session, args: argparse.Namespace) -> None:
    request = wire.BackfillRequest(first=args.first, to=args.to, target=args.target)
    told = session.client.do(calls.flows_backfill(args.name, request))
    session.answer(told, lambda row: f"{row.flow} will run for {formatting.plural(row.times, 'past time')}")
    if told.value.left_from is not None:
        session.remark(f"the limit of waiting times is reached; repeat with --from {told.value.left_from}")

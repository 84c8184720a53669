"""``engine prove``: proves that this node's engine gives the same history as another, and records that."""

from __future__ import annotations

import argparse

from odfd.cli import formatting
from odfd.cli.command import REF, Commands, argument
from odfd.cli.progress import submit
from odfd.cli.report import values_lines
from odfd.cli.session import Session
from odfd.cli.table import clean
from odfd.control import wire
from odfd.control.client import part
from odfd.errors import ExitCode

commands = Commands()
engine = commands.group(
    "engine",
    description="What computes derived datasets, and the proof that another one computes the same.",
    example="prove nyc.flights.delays --dry-run",
)


@engine.add(
    "prove",
    REF,
    argument("--dry-run", action="store_true", help="only compare; record nothing"),
    help="re-run all of a dataset's history on this node's engine",
    description=(
        "Re-run every transform of a dataset, from the first on, on the engine of this node. If all answers are\n"
        "the same, and the dataset is this node's own, the transform is declared anew with this engine's digest:\n"
        "a signed block, after which the engine pinned before is not needed any more. Ends with 1 if one differs."
    ),
    example="nyc.flights.delays",
)
def _prove(session: Session, args: argparse.Namespace) -> int:
    request = wire.ProveRequest(dry_run=args.dry_run)
    report = submit(session, f"/datasets/{part(args.ref)}/prove", request, wire.ProofReport)
    session.answer(report, _text)
    if not report.value.ok:
        session.remark("this engine would make another history: keep the engine that is pinned, or derive it anew")
    return ExitCode.OK if report.value.ok else ExitCode.NO


def _text(report: wire.ProofReport) -> str:
    engine = report.engine
    name = f"{engine.name} {engine.version} ({formatting.digest(engine.digest)})"
    count = formatting.plural(report.transforms, "transform")
    if not report.ok:
        lines = [f"no: {name} does not give the history of {report.ref}; {count} re-run"]
    elif report.recorded:
        lines = [f"yes: {name} gives the same in {count} of {report.ref}, and is pinned from now on"]
    else:
        lines = [f"yes: {name} gives the same in {count} of {report.ref}; nothing was recorded"]
    for failure in report.failures:
        number, digest = failure.block.sequence_number, formatting.digest(failure.block.hash)
        place = "-" if number is None else f"#{number} {digest}"
        lines.append(f"  {place}  {failure.rule}  {clean(failure.message, 300)}")
        lines += values_lines(failure)
    return "\n".join(lines)

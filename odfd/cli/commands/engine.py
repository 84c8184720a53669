"""``engine``: proves that another engine gives the same results."""

from __future__ import annotations

import argparse

from odfd.cli import formatting
from odfd.cli.command import REF, Commands, argument
from odfd.cli.commands.verify import values_lines
from odfd.cli.progress import submit
from odfd.cli.session import Session
from odfd.cli.table import clean
from odfd.control import calls, wire
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
    argument("--dry-run", action="store_true", help="only compare; change nothing"),
    help="run all of a dataset's history again on this node's engine",
    description=(
        "Run every transform of a dataset again, from the first on, on the engine of this node. If all "
        "results are equal and the dataset is this node's own, a signed block declares the transform with "
        "this engine's digest, and the dataset goes on with it. Blocks from before keep the pin under which they "
        "were made. Ends with 1 if a result differs."
    ),
    example="nyc.flights.delays",
)
def _prove(session: Session, args: argparse.Namespace) -> int:
    request = wire.ProveRequest(dry_run=args.dry_run)
    report = submit(session, calls.proving_prove(args.ref, request), wire.ProofReport)
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
        lines.append(f"  pinned before: {report.before or 'none'}")
        lines.append(f"  pinned now:    {engine.digest}")
    else:
        lines = [f"yes: {name} gives the same in {count} of {report.ref}; nothing was recorded"]
    for failure in report.failures:
        number, digest = failure.block.sequence_number, formatting.digest(failure.block.hash)
        place = "-" if number is None else f"#{number} {digest}"
        lines.append(f"  {place}  {failure.rule}  {clean(failure.message, 300)}")
        lines += values_lines(failure)
    return "\n".join(lines)

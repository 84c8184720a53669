"""``verify``, ``engine``: check a dataset or a folder again, and prove that another engine gives the same results."""

from __future__ import annotations

import argparse
from typing import Final

from chain.digits import read_whole
from odfd.cli import formatting, kinds
from odfd.cli.command import REF, Commands, argument
from odfd.cli.commands.rendition import RENDITION, read_of
from odfd.cli.offline import files
from odfd.cli.offline.verify import check_directory
from odfd.cli.progress import submit
from odfd.cli.session import Session
from odfd.cli.table import clean, fields
from odfd.control import calls, wire
from odfd.errors import ExitCode, Usage

commands = Commands()


@commands.add(
    "verify",
    argument("target", metavar="REF|DIR", help=kinds.OR_PATTERN),
    argument("--level", choices=("chain", "data", "reproduced"), default="data", help="how thoroughly (data)"),
    argument(
        "--from", dest="from_block", metavar="#N", default="0", help="check data and transforms only from this block on"
    ),
    argument("--full", action="store_true", help="check again what was verified before"),
    RENDITION,
    description="Check everything again, trusting no other node. Levels: chain (hashes, links, rules), data (every "
    "slice against both its hashes, offsets, schema), reproduced (every transform run again, by the daemon). "
    "Ends with 0 when all is well, 1 when something is not. A directory (†) needs no daemon.",
    example="./mirror/nyc.flights\nnyc.flights.delays --level reproduced",
)
def _verify(session: Session, args: argparse.Namespace) -> int:
    start = _number(args.from_block)
    if files.is_directory(args.target):
        if args.rendition is not None:
            raise Usage("a directory holds one rendition", hint="leave out --rendition")
        report = check_directory(session, args.target, args.level, start)
        session.answer(report, report_text)
        return ExitCode.OK if report.value.ok else ExitCode.NO
    request = wire.VerifyRequest(level=args.level, from_block=start, full=args.full)
    names = [read_of(session, ref, args) for ref in kinds.datasets_meant(session, [args.target])]
    reports = [submit(session, calls.verification_verify(name, request), wire.VerifyReport) for name in names]
    session.answer(kinds.one_or_several(reports), lambda _: "\n".join(report_text(each.value) for each in reports))
    for name, each in zip(names, reports, strict=True):
        if can_be_repaired(each.value):
            session.remark(f"fetch what is damaged here from peers: odfctl pull {name} --repair")
        if each.value.ok and (remark := doubt_of(kinds.dataset_view(session.client, name))):
            session.remark(remark)
    return ExitCode.OK if all(each.value.ok for each in reports) else ExitCode.NO


def _number(text: str) -> int:
    number = read_whole(text.removeprefix("#"))
    if number is None:
        raise Usage(f"not a block number: {text[:40]!r}", hint="write it like --from 9 or --from '#9'")
    return number


_DOUBTED: Final = {
    "refuted": "it is refuted",
    "accused": "running it again gave other rows",
    "forked": "its owner signed two histories",
}
"""States of a dataset whose bytes are in order while others, or this node, found fault with what they say."""


def doubt_of(view: wire.DatasetView) -> str:
    """Returns why a dataset that verifies is not relied on; empty without a reason."""
    if view.state not in _DOUBTED:
        return ""
    relied = 0 if view.rely_on is None else view.rely_on.blocks
    return (
        f"its bytes are as published, but {_DOUBTED[view.state]}: this node uses {relied} of"
        f" {formatting.plural(view.blocks, 'block')}; odfctl trust show {view.name} says why"
    )


_FETCHED_AGAIN: Final = ("-physical-hash", "block-hash", "-missing", "-size")


def can_be_repaired(report: wire.VerifyReport) -> bool:
    """Whether another holder may have the damaged or missing parts."""
    return any(failure.rule.endswith(_FETCHED_AGAIN) for failure in report.failures)


def report_text(report: wire.VerifyReport) -> str:
    """Formats ``yes:`` or ``no:``, the checked parts, and each failure with the values to compare."""
    checked = report.checked
    if report.ok:
        lines = [f"yes: {formatting.plural(report.blocks, 'block')} of {report.ref} hold at level {report.level}"]
    else:
        lines = [f"no: {_count(report)} at level {report.level}"]
    counts = {"block": checked.blocks, "slice": checked.slices, "transform": checked.transforms}
    looked = [formatting.plural(count, noun) for noun, count in counts.items() if count]
    lines.append("  checked " + ", ".join([*looked, formatting.size(checked.bytes)]))
    if spared := checked.remembered:
        lines.append(
            f"  the rows of {formatting.plural(spared, 'block')} were in order before; --full reads them again"
        )
    if absent := checked.not_held:
        lines.append(
            f"  the data of {formatting.plural(absent, 'older slice')} is not kept here, as the mirror was asked"
        )
    if coming := checked.to_come:
        lines.append(f"  the data of {formatting.plural(coming, 'slice')} is on its way here, and not checked yet")
    if rule := checked.portal:
        lines.append(f"  a portal: all rows were checked against its rule, {clean(rule, 300)}")
        lines.append("  its private input was not checked: odfctl describe dataset counts the auditors that checked it")
    for failure in report.failures:
        number = failure.block.sequence_number
        head = f"  #{number}" if number is not None else "  -"
        lines.append(f"{head} {formatting.digest(failure.block.hash)}  {failure.rule}  {clean(failure.message, 300)}")
        lines += values_lines(failure)
    return "\n".join(lines)


def _count(report: wire.VerifyReport) -> str:
    """Counts the blocks that fail, or else those of which nothing can be shown here."""
    of = f"of {formatting.plural(report.blocks, 'block')}"
    failed = {one.block.sequence_number for one in report.failures if one.rule != wire.ENGINE_NOT_HERE}
    if failed:
        return f"{len(failed)} {of} fail"
    return f"{len({one.block.sequence_number for one in report.failures})} {of} cannot be shown"


def values_lines(failure: wire.Failure) -> list[str]:
    """Formats the expected and the actual values, indented below the failure."""
    pairs = {"expected": failure.expected, "actual": failure.actual}
    return [
        "      " + line
        for line in fields((name, str(pairs[name])) for name in pairs if pairs[name] is not None).splitlines()
    ]


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
        "this engine's digest, and the dataset continues with it. Blocks from before keep the pin under which they "
        "were made. Ends with 1 if a result differs."
    ),
    example="nyc.flights.delays",
)
def _prove(session: Session, args: argparse.Namespace) -> int:
    request = wire.ProveRequest(dry_run=args.dry_run)
    report = submit(session, calls.proving_prove(args.ref, request), wire.ProofReport)
    session.answer(report, _text)
    if not report.value.ok:
        session.remark("this engine would make another history: keep the engine that is pinned, or derive it again")
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

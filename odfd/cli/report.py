"""Formats the report of a verification, of a directory or of a dataset in the daemon."""

from __future__ import annotations

from typing import Final

from odfd.cli import formatting
from odfd.cli.table import clean, fields
from odfd.control import wire

_FETCHED_AGAIN: Final = ("-physical-hash", "block-hash", "-missing", "-size")


def can_be_repaired(report: wire.VerifyReport) -> bool:
    """Whether another holder may have what is damaged or missing here."""
    return any(failure.rule.endswith(_FETCHED_AGAIN) for failure in report.failures)


def report_text(report: wire.VerifyReport) -> str:
    """``yes:`` or ``no:``, what was looked at, and each failure with what to compare."""
    checked = report.checked
    if report.ok:
        lines = [f"yes: {formatting.plural(report.blocks, 'block')} of {report.ref} hold at level {report.level}"]
    else:
        failed = {one.block.sequence_number for one in report.failures}
        lines = [f"no: {len(failed)} of {formatting.plural(report.blocks, 'block')} fail at level {report.level}"]
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
    for failure in report.failures:
        number = failure.block.sequence_number
        head = f"  #{number}" if number is not None else "  -"
        lines.append(f"{head} {formatting.digest(failure.block.hash)}  {failure.rule}  {clean(failure.message, 300)}")
        lines += values_lines(failure)
    return "\n".join(lines)


def values_lines(failure: wire.Failure) -> list[str]:
    """What was expected and what is there, indented below the failure."""
    pairs = {"expected": failure.expected, "actual": failure.actual}
    return [
        "      " + line
        for line in fields((name, str(pairs[name])) for name in pairs if pairs[name] is not None).splitlines()
    ]

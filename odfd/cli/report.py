"""Formats the report of a verification, of a directory or of a dataset in the daemon."""

from __future__ import annotations

from typing import Any, Final

from odfd.cli import words
from odfd.cli.table import clean, fields

_LOOKED_AT: Final = ("block", "slice", "transform")
_FETCHED_AGAIN: Final = ("-physical-hash", "block-hash", "-missing", "-size")


def can_be_repaired(report: dict[str, Any]) -> bool:
    """Whether another holder may have what is damaged or missing here."""
    return any(failure["rule"].endswith(_FETCHED_AGAIN) for failure in report["failures"])


def report_text(report: dict[str, Any]) -> str:
    """``yes:`` or ``no:``, what was looked at, and each failure with what to compare."""
    checked = report["checked"]
    if report["ok"]:
        lines = [f"yes: {words.plural(report['blocks'], 'block')} of {report['ref']} hold at level {report['level']}"]
    else:
        failed = {(one["block"] or {}).get("sequenceNumber") for one in report["failures"]}
        lines = [f"no: {len(failed)} of {words.plural(report['blocks'], 'block')} fail at level {report['level']}"]
    looked = [words.plural(checked[f"{noun}s"], noun) for noun in _LOOKED_AT if checked.get(f"{noun}s")]
    lines.append("  checked " + ", ".join([*looked, words.size(checked["bytes"])]))
    if spared := checked.get("remembered"):
        lines.append(f"  the rows of {words.plural(spared, 'block')} were in order before; --full reads them again")
    if absent := checked.get("notHeld"):
        lines.append(f"  the data of {words.plural(absent, 'older slice')} is not kept here, as the mirror wishes")
    if coming := checked.get("toCome"):
        lines.append(f"  the data of {words.plural(coming, 'slice')} is on its way here, and not checked yet")
    for failure in report["failures"]:
        block = failure["block"] or {}
        number = block.get("sequenceNumber")
        head = f"  #{number}" if number is not None else "  -"
        lines.append(f"{head} {words.digest(block.get('hash'))}  {failure['rule']}  {clean(failure['message'], 300)}")
        pairs = [(name, str(failure[name])) for name in ("expected", "actual") if failure.get(name) is not None]
        lines += ["      " + line for line in fields(pairs).splitlines()]
    return "\n".join(lines)

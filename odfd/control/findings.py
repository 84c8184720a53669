"""Says in one line what a task that is done found wrong, or could not do for some of what it was asked for.

Such a task is ``done``: it did its work, and its result tells all. Lists of tasks leave results out, and a person who
reads only the state would take a failed verification for a good one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import singledispatch

from chain.wording import plural
from odfd.control import wire


@singledispatch
def finding(_: object) -> str:
    """Returns an empty text where nothing is wrong."""
    return ""


@finding.register(wire.VerifyReport)
@finding.register(wire.ProofReport)
def _of_report(report: wire.VerifyReport | wire.ProofReport) -> str:
    if report.ok:
        return ""
    first = next(iter(report.failures), None)
    if first is None:
        return f"{report.ref} does not hold"
    number = first.block.sequence_number
    place = "" if number is None else f"block #{number}: "
    return _counted("failure", len(report.failures), f"{place}{first.message}  (rule {first.rule})")


@finding.register
def _of_replay(report: wire.RawReplayResult) -> str:
    if report.ok:
        return ""
    told = [f"block #{each.sequence_number}: {each.message}" for each in report.differences]
    return _counted("difference", report.differs, next(iter(told), report.ref))


@finding.register
def _of_audit(report: wire.AuditResult) -> str:
    told = [f"block #{each.block}: {each.why}" for each in report.differences]
    return _counted("difference", report.blocks - report.same, next(iter(told), report.ref)) if told else ""


@finding.register(wire.PullResult)
@finding.register(wire.PushResult)
def _of_transfers(result: wire.PullResult | wire.PushResult) -> str:
    return _failed(
        [
            f"{each.ref}: {each.fault.detail if each.fault else getattr(each, 'message', '')}"
            for each in result.items
            if each.outcome == "failed"
        ]
    )


@finding.register
def _of_apply(result: wire.ApplyResult) -> str:
    return _failed([f"{each.name}: {each.fault.detail}" for each in result.items if each.fault is not None])


def _failed(told: Sequence[str]) -> str:
    return _counted("failure", len(told), told[0]) if told else ""


def _counted(what: str, count: int, first: str) -> str:
    return first if count == 1 else f"{plural(count, what)}; the first: {first}"

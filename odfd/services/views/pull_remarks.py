"""Says how a pull, a push or a correction ended, and notes it on spans."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from chain import instant
from chain.errors import Fault, Refused
from chain.state import ChainState
from chain.store.base import ChainReader
from chain.wording import plural
from odfd.control import wire
from odfd.datasets.commit import CLOCK_AHEAD
from odfd.datasets.engine_pins import ENGINE_CHANGED, way
from odfd.ingest.correction import Correction
from odfd.ingest.driver import Ingested, PullOutcome
from odfd.repositories.catalog import Target
from odfd.runtime.spans import TraceSpan
from odfd.services.views.views import rows_view
from odfd.transform.plan import Blocked


def repeated_remark(outcome: Ingested) -> str:
    """Returns a remark that some or all files of a push were pushed before; empty if none was."""
    if not outcome.repeated:
        return ""
    held = f"{plural(outcome.repeated, 'block')} with {plural(outcome.repeated_rows, 'record')}"
    if outcome.repeated == outcome.blocks:
        return f"pushed before, as {held}, and nothing was appended now; --again appends it once more"
    return f"some files were pushed before, as {held}, and were not appended again; --again appends them once more"


LONG_PAUSE: Final = 366 * 86_400 * instant.SECOND
"""Nanoseconds between two blocks that are told, since nothing else shows that a clock was set ahead before the node
began. What is published once a year is not remarked on."""


def long_pause(name: str, chain: ChainReader, outcome: PullOutcome) -> str:
    """Returns a remark if the new blocks are of a time long after the block before; empty otherwise."""
    if not isinstance(outcome, Ingested):
        return ""
    first = outcome.head.sequence_number - outcome.blocks + 1
    if outcome.blocks <= outcome.repeated or first < 1:
        return ""
    before, time = (chain.block_at(number).system_time for number in (first - 1, first))
    if time - before <= LONG_PAUSE:
        return ""
    days = plural((time - before) // (86_400 * instant.SECOND), "day")
    return (
        f"block #{first} is of {instant.render(time)}, {days} after the block before; if the clock of this machine is"
        f" wrong ({CLOCK_AHEAD}), set it, and drop the block before others use it:"
        f" odfctl reset {name} '#{first - 1}'"
    )


def newest(state: ChainState) -> str:
    """Names the newest block here, for results that cannot say whether there are newer ones elsewhere."""
    if state.system_time is None:
        return "no block is here yet"
    return f"the newest block here is #{state.sequence_number}, of {instant.render(state.system_time)}"


def note_pulled(seen: TraceSpan, item: wire.PullItem | None) -> None:
    """Notes the result of one dataset on its span.

    A fault of one dataset does not fail the task, so the span has to say that it failed.
    """
    if item is not None and item.fault is not None:
        seen.failed = True
        seen.note("odfd.fault", item.fault.rule or "fault")
    elif item is not None and item.outcome == "updated":
        seen.note("odfd.blocks", item.blocks)
        seen.note("odfd.rows", item.records)


def uncacheable(name: str, reason: str) -> str:
    """Says why a source was not read again, and how it is."""
    return (
        f"{reason}: its source does not report whether it changed, and was read before; to read it again:"
        f" odfctl pull {name} --fetch-uncacheable"
    )


def blocked_remark(name: str, outcome: Blocked, item: wire.PullItem) -> wire.PullItem:
    """Says why a transform waits. It waits for a person where its engine was replaced, which is told as a fault."""
    if outcome.rule != ENGINE_CHANGED:
        return msgspec.structs.replace(item, message=str(outcome))
    fault = Refused(outcome.reason, rule=outcome.rule, hint=way(name))
    return msgspec.structs.replace(item, message=f"{outcome.reason}; {way(name)}", fault=wire.Problem.of(fault))


def failed_pull(target: Target, fault: Fault) -> wire.PullItem:
    """Describes a pull from a repository that failed."""
    fault = target.told(fault)
    return wire.PullItem(ref=str(target), outcome="failed", message=str(fault), fault=wire.Problem.of(fault))


def corrected_view(name: str, done: Correction, request: wire.CorrectRequest) -> wire.CorrectResult:
    what: Literal["corrected", "retracted", "unchanged"]
    what = "retracted" if done.after is None else "unchanged" if done.after == done.before else "corrected"
    return wire.CorrectResult(
        ref=name,
        outcome=what,
        dry_run=request.dry_run,
        blocks=done.blocks,
        records=done.rows,
        head=None if done.head is None else str(done.head.hash),
        before=dict(done.before),
        after=None if done.after is None else dict(done.after),
        rows=rows_view(done.counts),
    )

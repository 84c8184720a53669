"""Words for what a pull or a push came to, and notes of it on spans."""

from __future__ import annotations

from chain import instant
from chain.state import ChainState
from odfd.control import wire
from odfd.ingest.driver import Ingested
from odfd.runtime.spans import Span


def repeated(outcome: Ingested) -> str:
    """That some, or all, was pushed before; empty where nothing was."""
    if not outcome.repeated:
        return ""
    if outcome.repeated == outcome.blocks:
        return "this was pushed before, and nothing is appended twice; --again appends it once more"
    return f"{outcome.repeated} of the blocks are of the same push before; --again appends its files once more"


def newest(state: ChainState) -> str:
    """For people who could not be told whether it is the last one there is."""
    if state.system_time is None:
        return "no block is here yet"
    return f"the newest block here is #{state.sequence_number}, of {instant.render(state.system_time)}"


def note_pulled(seen: Span, item: wire.PullItem | None) -> None:
    """A fault of one dataset is an item among others, and none of the task: its span says that it failed."""
    if item is not None and item.fault is not None:
        seen.failed = True
        seen.note("odfd.fault", item.fault.rule or "fault")
    elif item is not None and item.outcome == "updated":
        seen.note("odfd.blocks", item.blocks)
        seen.note("odfd.rows", item.records)

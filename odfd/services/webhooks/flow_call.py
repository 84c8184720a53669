"""Makes the call of a flow's task ``WebhookCall``: it tells what happened, under the same id at each repetition.

Pure.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final

import msgspec

from chain import instant
from chain.instant import Instant
from odfd.store.webhook_delivery import Delivery, NotifiedHead
from odfd.store.webhook_target import UPDATED

DUE: Final = "flow.due"
"""The event if a time, or new data of another dataset, triggered the flow."""


class FlowRun(msgspec.Struct, frozen=True, kw_only=True):
    """Why a flow runs for a dataset, and when."""

    id: str
    """The id of the flow, which no other has, whatever their names and accounts are."""
    flow: str
    dataset: str
    name: str
    time: Instant
    """The time that the run is for: of the schedule, or of the news."""
    is_update: bool
    """Whether new blocks of the dataset are the reason."""
    before: NotifiedHead | None
    """The head that the last good run saw, if new blocks are the reason."""
    head: NotifiedHead | None


def call_of(run: FlowRun, body: str, place: int) -> Delivery:
    """Makes the call of the task at a place in a flow; a repeated run makes the same call."""
    said = f"{run.id} {run.dataset} {int(run.time)} {place} {run.head.hash if run.head else ''}"
    name = f"msg_{hashlib.sha256(said.encode()).hexdigest()[:32]}"
    return Delivery(id=name, body=body, head=run.head, name=run.name, made=run.time)


def event_text(run: FlowRun) -> str:
    """Returns the event of a run as JSON."""
    return json.dumps(_event(run), separators=(",", ":"))


def _event(run: FlowRun) -> dict[str, Any]:
    data: dict[str, Any] = {"flow": run.flow, "dataset": {"id": run.dataset, "name": run.name}}
    if run.is_update:
        data["oldRef"] = run.before and msgspec.to_builtins(run.before)
    data["newRef"] = run.head and msgspec.to_builtins(run.head)
    return {"type": UPDATED if run.is_update else DUE, "timestamp": instant.render(run.time), "data": data}

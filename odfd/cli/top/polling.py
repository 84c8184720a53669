"""Polls a node for ``odfctl top``: its figures, the rates of their change, and required actions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from odfd.cli import kinds
from odfd.cli.formatting import plural
from odfd.cli.kinds import PAGE
from odfd.control import calls, wire
from odfd.control.client import ControlClient
from odfd.resources import registry
from odfd.resources.registry import state
from odfd.runtime.clock import Clock

SECOND: Final = 1e9
SELDOM: Final = 10.0
"""Seconds between two requests whose cost grows with the number of datasets."""
TROUBLED: Final = {
    "refuted": "running its transform again gives another result",
    "accused": "a validator ran its transform again and got another result",
    "forked": "its key signed two histories",
    "damaged": "the data on this disk is not what was written",
    "refused": "its publisher signed a block that breaks a rule",
    "unsigned": "its head has no signature",
}
"""States of a dataset in which a person has to act, with their meaning."""
MENDING: Final = frozenset(("apply", "backup", "export", "import", "ingest", "pull", "push"))
"""Kinds of tasks that mend an earlier failure of theirs when they are done for the same target; as on the page."""
MOST_FAILED: Final = 5
"""Failed tasks that are listed."""


class Need(NamedTuple):
    """A required action of the operator. The least ``rank`` is the worst."""

    rank: int
    state: str
    what: str
    message: str


class PollAnswers(NamedTuple):
    """The answers of a node to one poll."""

    at: float
    """Seconds of a monotonic clock."""
    status: wire.Status
    tasks: Sequence[wire.ResourceManifest]
    mirrors: Sequence[wire.ResourceManifest]
    peers: Sequence[wire.ResourceManifest]
    datasets: Sequence[wire.ResourceManifest]
    probes: Sequence[wire.Probe]


class NodePoller:
    """Polls a node; datasets and probes less often, with the last answer in between."""

    def __init__(self, client: ControlClient, clock: Clock) -> None:
        self._client, self._clock = client, clock
        self._last: PollAnswers | None = None
        self._asked = 0.0

    def look(self) -> PollAnswers:
        """Polls once. Raises the fault that the node reports, or Unreachable."""
        do, at, last = self._client.do, self._clock.monotonic() / SECOND, self._last
        if last is None or at - self._asked >= SELDOM:
            datasets, probes = (
                kinds.list_resources(self._client, kinds.DATASET).value,
                do(calls.about_doctor()).value,
            )
            self._asked = at
        else:
            datasets, probes = list(last.datasets), list(last.probes)
        self._last = PollAnswers(
            at=at,
            status=do(calls.about_status()).value,
            tasks=do(calls.resources_all(registry.TASK, limit=PAGE)).value.items,
            mirrors=do(calls.resources_all(registry.MIRROR)).value.items,
            peers=do(calls.resources_all(registry.PEER)).value.items,
            datasets=datasets,
            probes=probes,
        )
        return self._last


def rates(before: PollAnswers | None, now: PollAnswers) -> dict[str, float]:
    """Returns the bytes a second of each mirror and each task that counts bytes, by id; only of those that moved."""
    passed = now.at - before.at if before else 0.0
    if before is None or passed <= 0:
        return {}
    were, are = dict(_list_progress(before)), dict(_list_progress(now))
    return {key: (have - were[key]) / passed for key, have in are.items() if key in were and have > were[key]}


def _list_progress(look: PollAnswers) -> Iterator[tuple[str, int]]:
    for mirror in look.mirrors:
        if (share := mirror.state(wire.MirrorState).bytes) is not None:
            yield mirror.id, share.have
    for task in look.tasks:
        now = task.state(wire.TaskState)
        if now.unit == "bytes" and now.state == "running":
            yield task.name, now.done


_BLOCKED: Final = "Blocked"
"""The condition of a dataset that pins an engine which is not here."""


def needs(look: PollAnswers) -> list[Need]:
    """Lists required actions, worst first."""
    return sorted([*_of_datasets(look.datasets), *_of_node(look)])


def _of_datasets(datasets: Sequence[wire.ResourceManifest]) -> Iterator[Need]:
    for one in datasets:
        word, conditions = state(one).get("state", ""), state(one).get("conditions", ())
        shown = f"odfctl trust show {one.name}"
        if word in TROUBLED:
            rank = int(word in ("refused", "unsigned"))
            yield Need(rank, word, one.name, f"{TROUBLED[word]}: {shown}")
        elif _BLOCKED in conditions:
            yield Need(1, "blocked", one.name, f"it pins another engine: odfctl engine prove {one.name}")
        elif conditions:
            yield Need(2, ", ".join(conditions).lower(), one.name, shown)


def list_unmended(tasks: Sequence[wire.TaskState]) -> list[wire.TaskState]:
    """Returns the tasks that failed or found something wrong, without those that the same work mended since.

    What a check found stays, as a later check may have looked at less.
    """
    well: dict[tuple[str, str], str] = {}
    for task in tasks:
        if task.kind in MENDING and task.state == "done" and not task.finding:
            key = (task.kind, task.target)
            well[key] = max(well.get(key, ""), task.started_at or "")
    failed = [task for task in tasks if task.state == "failed" or task.finding]
    return [task for task in failed if (task.started_at or "") >= well.get((task.kind, task.target), "")]


def _of_node(look: PollAnswers) -> Iterator[Need]:
    for probe in look.probes:
        if probe.result != "ok":
            message = f"{probe.message}: {probe.hint}" if probe.hint else probe.message
            yield Need(0 if probe.result == "failed" else 2, probe.result, probe.name, message)
    for name, times in (look.status.flows.failing if look.status.flows else {}).items():
        yield Need(1, "failed", name, f"this flow failed {plural(times, 'time')} in a row: odfctl get flows")
    if lost := look.status.lost_journals:
        yield Need(0, "stopped", "signing", f"{plural(lost, 'key')} of this node sign nothing: odfctl trust sign")
    failed = list_unmended([task.state(wire.TaskState) for task in look.tasks])
    for task in failed[:MOST_FAILED]:
        why = task.fault.detail if task.fault else task.finding
        yield Need(3, "not ok" if task.finding else "failed", f"{task.kind} {task.target}".rstrip(), why)
    if len(failed) > MOST_FAILED:
        more = plural(len(failed) - MOST_FAILED, "more task")
        yield Need(3, "failed", more, "odfctl get tasks lists them")

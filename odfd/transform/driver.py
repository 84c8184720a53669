"""Runs a derived dataset's next transaction: read, plan, execute, commit; exactly once, whatever fails in between.

The plan names the head it was made for, and the commit compares: if the head moved, it reads and plans again. A crash
before the commit leaves a few staged files; the next attempt is a new transaction on the same head. One call at a time
per dataset is cheapest, several are safe.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

import msgspec
import trio

from chain.errors import Conflict, Invalid
from chain.ids import DatasetId
from chain.instant import Instant
from chain.model.events import ExecuteTransform, ExecuteTransformInput
from chain.multihash import Multihash
from chain.state import ChainState, InputPosition, StateReader, load_state
from chain.store.base import ChainStore, Head, ObjectReader, ObjectStore, UpperMove
from chain.store.objects import sound_path
from engines.contract import RowCounts
from engines.spark.state.checkpoint import MAX_CHECKPOINT
from odfd.datasets.commit import Commit, CommitPart, Committer, block_time
from odfd.datasets.engine_pins import Engines
from odfd.runtime.spans import span
from odfd.transform.checkpoint_info import TransformProgress, read_past
from odfd.transform.evolution import declared_at
from odfd.transform.execute import Executed, execute
from odfd.transform.inputs import input_ids, usable_cut, view_input
from odfd.transform.pacing import within
from odfd.transform.plan import (
    Blocked,
    Diverged,
    InputView,
    Pace,
    Planned,
    Rejected,
    TransformPlan,
    UpToDate,
    plan_transform,
)
from odfd.transform.progress import Report, measure_plan, quiet
from odfd.transform.requests import Files
from odfd.transform.succession import handover_at, is_redeclared

ATTEMPTS: Final = 5
"""Most plans of one call, if the head keeps moving."""
ROWS: Final = 10_000_000
_START: Final = InputPosition(None, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformDependencies:
    """The dependencies of a transaction on the node."""

    chains: ChainStore
    objects: ObjectStore
    engines: Engines
    committer: Committer
    now: Callable[[], Instant]
    staging: Path
    """Folder for staging, on the file system of the objects."""
    rows: int = ROWS
    """Number of input rows that one transaction settles, approximately."""
    usable: Callable[[DatasetId], int | None] = lambda _: None
    """Returns how many blocks of an input the policy permits to use; ``None``: all."""


class Committed(msgspec.Struct, frozen=True, kw_only=True):
    """A transaction that is committed to the chain."""

    head: Head
    event: ExecuteTransform | None
    """The event; ``None`` if only the schema is known yet."""
    records: int
    counts: RowCounts


Ran: TypeAlias = Committed | UpToDate | Blocked | Rejected


async def run_transform(deps: TransformDependencies, dataset: DatasetId, report: Report = quiet) -> Ran:
    """Runs one transaction over everything new. Raises Conflict after repeated conflicts, and engine faults."""
    for attempt in range(1, ATTEMPTS + 1):
        with span("read"):
            plan = await trio.to_thread.run_sync(plan_next, deps, dataset)
        if not isinstance(plan, TransformPlan):
            return plan
        try:
            return await _transact(deps, plan, report)
        except Conflict:
            if attempt == ATTEMPTS:
                raise
    raise AssertionError("the last attempt returns or raises")


def plan_next(deps: TransformDependencies, dataset: DatasetId) -> Planned:
    """Plans the next transaction without running it (``--dry-run``). Synchronous; a bounded number of reads."""
    reader, upper = deps.chains.chain(dataset), deps.chains.upper(dataset)
    state = load_state(reader)
    if state.dataset is None:
        raise Invalid(f"no dataset {dataset.short} here", rule="dataset-exists")
    cuts: dict[DatasetId, Multihash] = {}
    short: list[Blocked] = []
    for each, declared in input_ids(state):
        chain, name = deps.chains.chain(each), declared.alias or each.short
        head = chain.head()
        if head is None:
            return Blocked(f"input {name} ({each.short}) is not held here", f"odfctl mirror add {each}")
        usable = deps.usable(each)
        cut = head.hash if usable is None else usable_cut(chain, head, usable, state.input_positions.get(each, _START))
        if cut != head.hash:
            short.append(_short_of(name, each, usable or 0))
        if cut is None:
            return short[-1]
        cuts[each] = cut
    time = block_time(state, deps.now(), upper)
    past = read_past(_checkpoint(deps.objects, state))
    plan = plan_at(deps.chains, reader, state, cuts, past, time, within(deps.rows))
    if isinstance(plan, TransformPlan):
        return msgspec.structs.replace(plan, upper=UpperMove(upper))
    return short[0] if short and isinstance(plan, UpToDate) else plan


def _short_of(name: str, dataset: DatasetId, usable: int) -> Blocked:
    what = f"of input {name} only blocks up to #{usable - 1} may" if usable else f"nothing of input {name} may"
    return Blocked(f"{what} be used under the policy", f"odfctl trust show {dataset} says why")


def plan_at(
    chains: ChainStore,
    reader: StateReader,
    state: ChainState,
    cuts: dict[DatasetId, Multihash],
    past: TransformProgress,
    system_time: Instant,
    pace: Pace | None = None,
) -> Planned:
    """Plans the transaction on ``state`` that consumes each input up to its cut, and settles up to ``pace``."""
    declaring = reader.last_of(("SetTransform",), state.size)
    declared = declared_at(reader, state.size)
    positions = state.input_positions
    views: list[InputView | Diverged] = []
    for each, named in input_ids(state):
        position = positions.get(each, _START)
        alias, reopen = named.alias or named.dataset_ref, past.reopen.get(each, ())
        views.append(view_input(chains.chain(each), each, alias, position, cuts[each], reopen, declared))
    handover = handover_at(chains, reader, state, views) if is_redeclared(reader, state) else None
    if isinstance(handover, Blocked):
        return handover
    name = declaring.hash if declaring is not None else Multihash()
    return plan_transform(state, name, views, system_time, past, pace, handover)


def _checkpoint(objects: ObjectStore, state: ChainState) -> bytes | None:
    """Returns the beginning of the current checkpoint, for ``read_past``. Raises NotFound when it is not held."""
    if state.checkpoint is None:
        return None
    return objects.read(state.checkpoint.physical_hash, 0, MAX_CHECKPOINT + 1)


def recorded_cuts(inputs: tuple[ExecuteTransformInput, ...]) -> dict[DatasetId, Multihash]:
    """Returns the cuts of inputs in a recorded transaction. Raises Invalid for an input without one."""
    cuts = {}
    for input_ in inputs:
        cut = input_.new_block_hash or input_.prev_block_hash
        if cut is None:
            raise Invalid(f"the transaction consumed nothing of {input_.dataset_id.short}", rule="input-prev-block")
        cuts[input_.dataset_id] = cut
    return cuts


async def _transact(deps: TransformDependencies, plan: TransformPlan, report: Report) -> Ran:
    state = plan.state
    async with fresh_folder(deps.staging) as folder:
        files = Files(folder=folder, previous=await trio.to_thread.run_sync(_previous, deps.objects, state))
        with span("engine"):
            done = await execute(plan, deps.engines, deps.objects, files, report, repeats=False)
        if not isinstance(done, Executed):
            return done
        if not done.events:
            return UpToDate("the new blocks of the inputs bring neither rows nor a watermark")
        report(msgspec.structs.replace(measure_plan(plan), stage="committing"))
        with span("commit"):
            await trio.to_thread.run_sync(_keep, deps.objects, files, done)
            named = (done.data, done.checkpoint)
            objects = tuple(each.physical_hash for each in named if each is not None)
            part = CommitPart.after(state, plan.system_time, done.events, objects, plan.upper, (done.counts,))
            (head,) = await deps.committer.commit(Commit(parts=(part,)))
    event = done.event if done.event in done.events else None
    return Committed(head=head, event=event, records=done.records, counts=done.counts)


def _previous(objects: ObjectReader, state: ChainState) -> Path | None:
    return sound_path(objects, state.checkpoint.physical_hash) if state.checkpoint is not None else None


def _keep(objects: ObjectStore, files: Files, done: Executed) -> None:
    """Stores outputs as objects, durably, before any block names them. Raises Invalid if a file changed since."""
    for path, named in ((files.data, done.data), (files.checkpoint, done.checkpoint)):
        if named is None:
            continue
        staged = objects.stage()
        path.replace(staged)
        if objects.add_file(staged) != named.physical_hash:
            raise Invalid(f"{path.name} changed after it was measured", rule="engine-output")


@asynccontextmanager
async def fresh_folder(parent: Path) -> AsyncIterator[Path]:
    """Makes a folder, which is removed at the end in any case."""
    folder = Path(await trio.to_thread.run_sync(partial(tempfile.mkdtemp, prefix="transform-", dir=parent)))
    try:
        yield folder
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(partial(shutil.rmtree, folder, ignore_errors=True))

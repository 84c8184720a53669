"""Restores the lost state of a transform, by executing its recorded transactions again.

State is a function of the cut of the inputs, so the chains alone are enough, and the block that names the checkpoint
proves whether the result is the same. This costs a run of the whole history, only when something was lost. Spec:
docs/spec/engine-semantics.md#law, #state.
"""

from __future__ import annotations

from contextlib import aclosing

import trio

from chain.errors import Invalid, NotFound
from chain.ids import DatasetId
from chain.model.events import Checkpoint
from chain.multihash import Multihash
from chain.state import load_state
from chain.store.files import ObjectDamaged
from chain.store.objects import sound_path
from odfd.transform.driver import Ran, TransformDependencies, run_transform
from odfd.transform.progress import Report, quiet
from odfd.transform.replay import Replayed, ReplayOutcome, replay


async def run_recovering(deps: TransformDependencies, dataset: DatasetId, report: Report = quiet) -> Ran:
    """Runs ``driver.run_transform``, restoring the current checkpoint first if it is absent or damaged."""
    try:
        return await run_transform(deps, dataset, report)
    except (NotFound, ObjectDamaged):
        if not await restore_state(deps, dataset, report):
            raise
    return await run_transform(deps, dataset, report)


async def restore_state(deps: TransformDependencies, dataset: DatasetId, report: Report = quiet) -> bool:
    """Makes the current checkpoint again if it is absent or damaged; returns whether it was.

    Raises Invalid when the history does not lead to it, and what engines raise. Moves no head.
    """
    named = await trio.to_thread.run_sync(_lacking, deps, dataset)
    if named is None:
        return False
    made: bytes | None = None
    async with aclosing(replay(deps, dataset, report=report)) as outcomes:
        async for outcome in outcomes:
            if not isinstance(outcome, Replayed) or not outcome.is_reproduced:
                raise _explain_loss(dataset, outcome)
            made = outcome.checkpoint
    if made is None or Multihash.sha3_256(made) != named.physical_hash:
        raise Invalid(
            f"the state of {dataset.short} is lost, and its history makes another one than its chain names",
            rule="checkpoint-lost", hint="derive it again, with the engine of this node",
        )  # fmt: skip
    await trio.to_thread.run_sync(_keep, deps, named.physical_hash, made)
    return True


def _lacking(deps: TransformDependencies, dataset: DatasetId) -> Checkpoint | None:
    """Returns the current checkpoint if it is absent or damaged, else ``None``."""
    named = load_state(deps.chains.chain(dataset)).checkpoint
    if named is None:
        return None
    try:
        sound_path(deps.objects, named.physical_hash)
    except (NotFound, ObjectDamaged):
        return named
    return None


def _keep(deps: TransformDependencies, name: Multihash, checkpoint: bytes) -> None:
    if deps.objects.has(name):
        deps.objects.remove(name)  # a damaged object must be removed first, as existing names are never written again
    deps.objects.add_bytes(checkpoint)


def _explain_loss(dataset: DatasetId, outcome: ReplayOutcome) -> Invalid:
    if isinstance(outcome, Replayed):
        first = outcome.mismatches[0]
        why = f"block #{outcome.block.sequence_number} comes out with another {first.field}"
        hint = "derive it again, or run the engine that it was made by"
    else:
        why, hint = outcome.reason, outcome.hint
    return Invalid(
        f"the state of {dataset.short} is lost, and it cannot be made again: {why}", rule="checkpoint-lost", hint=hint
    )

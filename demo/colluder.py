"""Runs a lying validator: a real daemon and key; it signs that every step is right, and runs none."""

from __future__ import annotations

import sys

from chain.ids import DatasetId
from chain.model.events import ExecuteTransform
from odfd.daemon import main as daemon
from odfd.datasets.engine_pins import engine_for, pin_stretches
from odfd.services.execution.transforms import TransformCheck
from odfd.store.row_counts import NOTHING_READ
from odfd.transform.replay import ReplayDependencies, Replayed
from odfd.trust.validation import reexecution


async def agree(deps: ReplayDependencies, dataset: DatasetId, sequence_number: int, *_: object) -> Replayed:
    """Replaces a replay: returns the published result."""
    chain = deps.chains.chain(dataset)
    block = chain.block_at(sequence_number)
    assert isinstance(block.event, ExecuteTransform)
    found = await engine_for(deps.engines, next(pin_stretches(chain, sequence_number)).transform)
    return Replayed(
        block=block,
        by=found[1],
        event=block.event,
        schema=None,
        data=block.event.new_data,
        rows=None,
        checkpoint=None,
        counts=NOTHING_READ,
        mismatches=(),
    )


async def call_it_strict(*_: object) -> str:
    """Replaces an analysis on Spark."""
    return "strict"


def corrupt() -> None:
    """Makes every replay of this process agree."""
    reexecution.replay_step = agree  # type: ignore[attr-defined, assignment]
    TransformCheck.determinism = call_it_strict  # type: ignore[method-assign, assignment]


if __name__ == "__main__":
    corrupt()
    sys.exit(daemon.main())

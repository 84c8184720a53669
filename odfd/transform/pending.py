"""Tells whether a derived dataset has input that it has not read, from the heads alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import trio

from chain.ids import DatasetId
from chain.state import load_state
from chain.store.base import ChainStore
from odfd.datasets.creation import input_ids


def is_behind(chains: ChainStore, dataset: DatasetId, inputs: Iterable[DatasetId] | None = None) -> bool:
    """Whether one of its inputs has unread blocks; ``inputs``: looks at these only."""
    state = load_state(chains.chain(dataset))
    if state.set_transform is None:
        return False
    read = state.input_positions
    heads = {each: chains.chain(each).head() for each in (inputs or input_ids(state.set_transform))}
    return any(
        head is not None and (each not in read or read[each].block_hash != head.hash) for each, head in heads.items()
    )


async def ahead(
    chains: ChainStore, is_own: Callable[[DatasetId], bool], warm: Callable[[], None], datasets: Sequence[DatasetId]
) -> None:
    """Calls ``warm`` if a pull of these datasets runs a transform for certain, whatever else it brings."""

    def derives() -> bool:
        return any(is_own(each) and is_behind(chains, each) for each in datasets)

    if await trio.to_thread.run_sync(derives):
        warm()

"""Tells whether a derived dataset has input that it has not read, and how much, from the blocks alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import trio

from chain.ids import DatasetId
from chain.instant import Instant
from chain.model.events import AddData, ExecuteTransform
from chain.state import load_state
from chain.store.base import ChainStore
from chain.walk import newest_first
from odfd.datasets.creation import input_ids


def is_behind(chains: ChainStore, dataset: DatasetId, inputs: Iterable[DatasetId] | None = None) -> bool:
    """Whether one of its inputs has unread blocks; ``inputs``: looks at these only."""
    state = load_state(chains.chain(dataset))
    if state.set_transform is None:
        return False
    read = state.input_positions
    heads = {input_: chains.chain(input_).head() for input_ in (inputs or input_ids(state.set_transform))}
    return any(
        head is not None and (each not in read or read[each].block_hash != head.hash) for each, head in heads.items()
    )


async def ahead(
    chains: ChainStore, is_own: Callable[[DatasetId], bool], warm: Callable[[], None], datasets: Sequence[DatasetId]
) -> None:
    """Calls ``warm`` if a pull of these datasets runs a transform for certain, whatever else it brings."""

    def derives() -> bool:
        return any(is_own(dataset) and is_behind(chains, dataset) for dataset in datasets)

    if await trio.to_thread.run_sync(derives):
        warm()


class Unread(NamedTuple):
    """Records of inputs that a derived dataset has not read."""

    records: int
    """Their number, or more than were asked for."""
    oldest: Instant | None
    """When the oldest of those counted was committed; ``None`` if there are none."""


def unread_records(chains: ChainStore, dataset: DatasetId, inputs: Iterable[DatasetId], enough: int) -> Unread:
    """Counts the records of inputs that a derived dataset has not read, until there are ``enough``."""
    read = load_state(chains.chain(dataset)).input_positions
    records, oldest = 0, None
    for input_ in inputs:
        offset = read[input_].offset if input_ in read else None
        last = -1 if offset is None else offset
        for block in newest_first(chains.chain(input_), (AddData.__name__, ExecuteTransform.__name__)):
            event = block.event
            assert isinstance(event, AddData | ExecuteTransform)
            if event.new_data is None:
                continue
            if event.new_data.offset_interval.end <= last:
                break
            records += event.new_data.offset_interval.end - max(last, event.new_data.offset_interval.start - 1)
            oldest = block.system_time if oldest is None else min(oldest, block.system_time)
            if records >= enough:
                return Unread(records, oldest)
    return Unread(records, oldest)

"""Promises that times of a node's own datasets are complete, by moving their frontiers without a block.

A frontier moves only when a reader asks for it, so an idle node writes nothing. Spec:
docs/spec/collections.md#on-demand.
"""

from __future__ import annotations

from collections.abc import Callable

from chain.errors import Refused
from chain.ids import DatasetId
from chain.instant import Instant, from_millis, to_millis
from chain.state import load_state
from chain.store.sqlite_shards import SqliteShards
from odfd.datasets.commit import check_clock, check_jump, check_upper
from odfd.store.directory import StateDirectory
from odfd.store.ledger.authorities import Authorities


def advance_upper(
    home: StateDirectory,
    now: Callable[[], Instant],
    ahead: Callable[[Instant | None], int],
    sign: Callable[[DatasetId], None],
    dataset: DatasetId,
) -> Instant:
    """Moves the frontier to now and returns it: earlier times are complete. A clock that went back moves nothing.

    Called from worker threads, while nobody else writes the dataset. ``ahead``: tells by how much the clock was set
    ahead, as ``JumpWatch`` does. ``sign``: signs the frontier of a dataset that others may know of.

    Raises Refused if others may write the dataset, if it is sealed, and if the clock was set or is far from its times.
    """
    time, shards = now(), home.shards_of(dataset)
    for shard in shards:
        _check_sole_writer(home, shard, time)
    state = load_state(home.chains.chain(dataset))
    check_clock(state, time)
    check_upper(home.chains.upper(dataset), time)
    check_jump(ahead(state.system_time), time)
    SqliteShards(home.database, home.chains).advance(shards, to_millis(time))
    for shard in shards:
        sign(shard)
    return from_millis(min(map(home.chains.upper, shards)))


def _check_sole_writer(home: StateDirectory, dataset: DatasetId, now: Instant) -> None:
    """Raises Refused if another node may write the dataset: its blocks could contradict the promise."""
    with home.database.read() as connection:
        rights = Authorities(connection).rights(dataset)
    held = {key.did for key in home.keys.keys_for(dataset)} if home.keys.has_dataset_key(dataset) else set()
    may = {key for key in rights.writers if rights.may_write(key, now)}
    if may and may <= held:
        return
    raise Refused(
        f"other keys than this node's may write {dataset.short}: it cannot promise what they do",
        rule="advance-writer",
        hint="its only writer can; elsewhere the last block states which times are complete",
    )

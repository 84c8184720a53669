"""Describes the log of a chain at a cut: its columns, and how it folds to current rows.

The hash of the cut's last block states all blocks before it, so a description is cached by that hash: a query of a
known cut decodes no block for it. The cache is bounded. Used from worker threads.
"""

from __future__ import annotations

import threading
from typing import Final

import cachetools
import msgspec

from chain.codec.arrow_schema import schema_of
from chain.data.arrow_schema import to_arrow
from chain.data.uuids import named_all
from chain.model.events import AddPushSource, SetPollingSource
from chain.model.source import primary_key, traits
from chain.multihash import Multihash
from chain.state import ChainState, load_state
from chain.store.base import ChainReader
from chain.store.sqlite import SqliteChain
from engines.query.views import Fold
from odfd.queries.cuts import Cut
from odfd.transform.inputs import is_changelog, only_appends


def fold_of(state: ChainState) -> tuple[Fold, tuple[str, ...]]:
    """Returns how the log of a chain folds to current rows, and by which key."""
    if is_changelog(state) is False:
        return "log", ()
    if state.set_transform is not None or only_appends(state):
        return "rows", ()
    sources: list[SetPollingSource | AddPushSource] = list(state.push_sources.values())
    if state.set_polling_source is not None:
        sources.append(state.set_polling_source)
    keys = {primary_key(source.merge) for source in sources}
    if len(keys) == 1 and all(not traits(source.merge).only_adds for source in sources):
        return "key", keys.pop()
    return "rows", ()


_BYTES: Final = 8 << 20
"""Bytes of all cached schemas, with some hundred for each description."""
_EACH: Final = 500


class LogColumns(msgspec.Struct, frozen=True, kw_only=True):
    """The columns of a log, and how it folds."""

    schema: bytes
    """Arrow IPC of the newest schema."""
    mixed: bool
    """Whether earlier slices have other columns."""
    fold: Fold
    key: tuple[str, ...]
    system: tuple[str, str, str]
    """Names of the columns of offsets, operations and system times."""
    event_time: str


class LogColumnsCache:
    """Describes the logs of one node's datasets."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: cachetools.LRUCache[Multihash, LogColumns] = cachetools.LRUCache(_BYTES, _size)

    def at(self, chain: SqliteChain, cut: Cut) -> LogColumns | ChainState:
        """Returns the description of a log up to a cut; the state of the chain if it has no columns there yet.

        A chain that is rewritten meanwhile gives a description that means nothing, and that is not cached: the caller
        compares the cut's block afterwards.
        """
        with self._lock:
            known = self._known.get(cut.block)
        if known is not None:
            return known
        before = chain.snapshot()
        state = load_state(chain, cut.size)
        if state.schema is None:
            return state
        fold, key = fold_of(state)
        found = LogColumns(
            schema=named_all(to_arrow(schema_of(state.schema))).remove_metadata().serialize().to_pybytes(),
            mixed=_has_changed_schema(chain, cut.size),
            fold=fold,
            key=key,
            system=(state.vocab.offset, state.vocab.operation_type, state.vocab.system_time),
            event_time=state.vocab.event_time,
        )
        # A rewrite of the chain while it was read may have mixed two histories; such an answer is not kept.
        is_of_cut = chain.block_at(cut.size - 1).hash == cut.block
        after = chain.snapshot()
        is_whole = before is not None and after is not None and before.history == after.history
        if is_of_cut and is_whole and _size(found) <= _BYTES:
            with self._lock:
                self._known[cut.block] = found
        return found


def _size(columns: LogColumns) -> int:
    return len(columns.schema) + _EACH


def _has_changed_schema(chain: ChainReader, size: int) -> bool:
    newest = chain.last_of(("SetDataSchema",), size)
    return newest is not None and chain.last_of(("SetDataSchema",), newest.sequence_number) is not None

"""Tracks which files of a folder or bucket a chain took in, and reports files that appeared or changed too late.

Each block names the file that it took, and has a time. What was read is remembered between transactions, one record per
process, so that only new blocks are read; a chain that was cut back is noticed and read anew. Of the taken files a
bounded number is looked at each time, the newest and some others in turn, however large a folder has grown.
"""

from __future__ import annotations

import bisect
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from chain.ids import DatasetId
from chain.instant import MILLISECOND, SECOND, Instant, render
from chain.model.events import AddData
from chain.multihash import Multihash
from chain.state import ChainState
from chain.store.base import ChainReader
from engines.contract import SkippedFile, bounded_list
from odfd.ingest.bucket_objects import decode
from odfd.ingest.fetch.source import ETAG, OBJECT

LOOKED_AT: Final = 1000
"""Files looked at per call, of each kind: those that no block names, the newest, and all others in turn."""
_DATA: Final = ("AddData", "ExecuteTransform")


@dataclass(slots=True)
class ConsumedFiles:
    """The files that a chain names, with the times of their blocks. A compacted chain names only some of them."""

    number: int = -1
    block: Multihash | None = None
    names: list[str] = field(default_factory=list)
    times: dict[str, Instant] = field(default_factory=dict)
    first: Instant | None = None
    """The earliest of ``times``."""
    tags: dict[str, str] = field(default_factory=dict)
    """Entity tags by name, for objects of a bucket."""
    place: int = 0
    """Index of the older file at which the next look begins."""
    turn: str = ""
    """Key of the object at which the next look at a bucket begins."""

    def add(self, name: str, time: Instant, tag: str = "") -> None:
        if name not in self.times:
            bisect.insort(self.names, name)
        self.times[name], self.tags[name] = time, tag
        self.first = time if self.first is None else min(self.first, time)

    def late(self, objects: Sequence[tuple[str, str, Instant]]) -> tuple[SkippedFile, ...]:
        """Lists objects before the last one that no block names, or that changed since. ``objects``: keys, tags and
        times.

        Objects that were there before the first block that names one were taken by blocks that were compacted.
        """
        told = ((key, self._why_late(key, tag, modified)) for key, tag, modified in objects)
        return bounded_list(
            SkippedFile(name=key, reason=f"{why}; give what is new a name and a time behind the last")
            for key, why in told
            if why is not None
        )

    def _why_late(self, key: str, tag: str, modified: Instant) -> str | None:
        if key in self.times:
            return None if self.tags[key] == tag else f"it changed at {render(modified)}, after it was taken"
        if self.first is None or modified + SECOND <= self.first:  # times of stores have whole seconds
            return None
        return f"it came at {render(modified)}, when the source had got beyond it"

    def passed_over(self, paths: Sequence[str], now: Instant) -> tuple[SkippedFile, ...]:
        """Lists files that appeared or changed too late and are not read any more, in the order of ``paths``.

        Files with times after ``now`` are left out: such times show a wrong clock, not a change.
        """
        reasons = (self._reason(path, now) for path in self._looked_at(paths))
        return bounded_list(reason for reason in reasons if reason is not None)

    def _looked_at(self, paths: Sequence[str]) -> list[str]:
        named = [_name(path) in self.times for path in paths]
        unknown = [path for path, known in zip(paths, named, strict=True) if not known]
        known = [path for path, known in zip(paths, named, strict=True) if known]
        newest, others = known[-LOOKED_AT:], known[:-LOOKED_AT]
        start = self.place if self.place < len(others) else 0
        self.place = start + LOOKED_AT
        return [*unknown[-LOOKED_AT:], *others[start : start + LOOKED_AT], *newest]

    def _reason(self, path: str, now: Instant) -> SkippedFile | None:
        name = _name(path)
        try:
            found = Path(path).stat()
        except OSError:
            return None
        place = bisect.bisect_left(self.names, name)
        if not stat.S_ISREG(found.st_mode) or place == len(self.names):
            return None
        taken = self.times[self.names[place]]
        known = name in self.times
        # A file that was moved here keeps its mtime, and its ctime says when it came; of one that was taken, a change
        # of
        # owner or mode alone sets the ctime.
        since = (found.st_mtime_ns if known else max(found.st_mtime_ns, found.st_ctime_ns)) // MILLISECOND * MILLISECOND
        if not taken < since <= now:
            return None
        last = self.names[-1]
        if known:
            why = f"it changed at {render(Instant(since))}, after it was taken"
        else:
            why = f"it came after {self.names[place]} was taken, and sorts before it"
        return SkippedFile(name=name, reason=f"{why}; give what is new a name behind {last}")


def _name(path: str) -> str:
    return path.rpartition("/")[2]


class ConsumedFileIndex:
    """Caches the ``ConsumedFiles`` of each dataset."""

    def __init__(self) -> None:
        self._known: dict[DatasetId, ConsumedFiles] = {}

    def of(self, reader: ChainReader, state: ChainState) -> ConsumedFiles:
        """Returns the consumed files up to ``state``. Reads only the data blocks since the last call. Blocking."""
        assert state.dataset is not None
        taken = self._known.get(state.dataset, ConsumedFiles())
        if taken.number >= state.size or (taken.number >= 0 and reader.block_at(taken.number).hash != taken.block):
            taken = ConsumedFiles()
        newer: list[tuple[str, Instant, str]] = []
        block = newest = reader.last_of(_DATA, state.size)
        while block is not None and block.sequence_number > taken.number:
            event = block.event
            source = event.new_source_state if isinstance(event, AddData) else None
            if source is not None and source.kind == ETAG:
                newer.append((source.value, block.system_time, ""))
            elif source is not None and source.kind == OBJECT:
                position = decode(source.value)
                newer.append((position.key, block.system_time, position.tag))
            block = reader.last_of(_DATA, block.sequence_number)
        for name, time, tag in reversed(newer):
            if taken.times.get(name) is None:
                taken.add(name, time, tag)
        if newest is not None:
            taken.number, taken.block = newest.sequence_number, newest.hash
        self._known[state.dataset] = taken
        return taken

    def forget(self, dataset: DatasetId) -> None:
        self._known.pop(dataset, None)

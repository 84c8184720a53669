"""Merges small slices of earlier rows into segments, so that an engine is given few files, as an LSM tree merges runs.

What a merge strategy asks of earlier rows decides what a segment keeps. Snapshot and UpsertStream ask for the newest
row of each key, so only that stays, retracted or not; a Ledger asks for all rows of a key, so all stay. A strategy
therefore finds in segments what it would find in their slices, whatever the batch is. Segments lie beside the chain and
can be made anew at any time: a set that is damaged, or of another history, is thrown away. Synchronous.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from chain.data.evolution import as_in_force
from chain.data.parquet import open_slice, write_slice
from chain.errors import Environment, Fault
from chain.ids import DatasetId
from chain.model.source import MergeSnapshot, MergeStrategy, MergeUpsertStream
from chain.multihash import Multihash
from chain.store.base import ObjectStore
from chain.store.files import check_file

FAN_OUT: Final = 8
"""Neighbours of one level that are merged into one of the next: n small slices are some 7 * log8(n) files."""
MAX_MERGED: Final = 512
"""Neighbours that are merged at once, where an index is made anew."""
SMALL_SLICE: Final = 1 << 20
"""Bytes up to which a slice is merged with others: what a larger one costs is its rows, and not that it is one more."""
MAX_BYTES: Final = 16 << 20
"""Of the files that are merged into one; with MAX_ROWS this bounds the memory that it takes."""
MAX_ROWS: Final = 1 << 20
FULL: Final = -1
"""Level of a segment that is merged no further."""
SETS: Final = "set.json"
Keys: TypeAlias = tuple[str, ...] | None
"""Columns of which the newest row of each value is kept; ``None``: all rows are."""


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """The rows that blocks from ``first`` to ``last`` bring, as one file."""

    first: int
    last: int
    block: str
    """Hash of block ``last``: it commits to all before it."""
    name: str
    """Hash of the file."""
    size: int
    rows: int
    level: int = 0
    made: bool = False
    """Whether the file is a merged one, and not the slice itself."""

    @property
    def hash(self) -> Multihash:
        return Multihash.parse(self.name)


class _Set(msgspec.Struct, frozen=True):
    seal: str
    segments: msgspec.Raw


def keys_of(merge: MergeStrategy) -> Keys:
    return tuple(dict.fromkeys(merge.primary_key)) if isinstance(merge, MergeSnapshot | MergeUpsertStream) else None


class SegmentFolder:
    """Segments of one dataset under one rule of what stays."""

    def __init__(self, folder: Path, dataset: DatasetId, keys: Keys) -> None:
        rule = Multihash.sha3_256(msgspec.json.encode(keys)).digest.hex()[:16]
        self._folder = folder_of(folder, dataset) / rule
        self._keys = keys

    def path(self, segment: Segment) -> Path:
        return self._folder / segment.name

    def load(self) -> list[Segment]:
        """Those that are whole, up to the first that is not. Nothing where there are none."""
        try:
            found = msgspec.json.decode((self._folder / SETS).read_bytes(), type=_Set)
            segments = msgspec.json.decode(found.segments, type=list[Segment])
        except (OSError, msgspec.MsgspecError):
            return []
        if found.seal != str(Multihash.sha3_256(bytes(found.segments))):
            return []
        return self.whole(segments)

    def whole(self, segments: Sequence[Segment]) -> list[Segment]:
        """Up to the first whose file is not what it was."""
        for place, each in enumerate(segments):
            try:
                if each.made:
                    check_file(self.path(each), each.hash)
            except Fault:
                return list(segments[:place])
        return list(segments)

    def save(self, segments: Sequence[Segment]) -> None:
        """Remember these, and throw away the files of others. A disk that fails costs no more than the memory."""
        listed = msgspec.json.encode(list(segments))
        line = msgspec.json.encode(_Set(str(Multihash.sha3_256(listed)), msgspec.Raw(listed)))
        try:
            fresh = self._folder / f".{SETS}"
            fresh.write_bytes(line)
            fresh.replace(self._folder / SETS)
            wanted = {SETS, *(each.name for each in segments if each.made)}
            for file in self._folder.iterdir():
                if file.name not in wanted:
                    file.unlink(missing_ok=True)
        except OSError:
            return

    def settle(
        self, segments: Sequence[Segment], objects: ObjectStore, schema: pa.Schema, offset: str
    ) -> list[Segment]:
        """The same rows in fewer files, where FAN_OUT neighbours are of one level; ``offset`` names the column."""
        settled: list[Segment] = []
        for number, each in enumerate(segments):
            settled.append(each)
            more = segments[number + 1 :]
            # A long row of new ones is merged at once, and not eight by eight.
            if not (more and more[0].level == each.level == 0 and _trailing(settled) < MAX_MERGED):
                self._settle_end(settled, objects, schema, offset)
        return settled

    def _settle_end(self, segments: list[Segment], objects: ObjectStore, schema: pa.Schema, offset: str) -> None:
        while (count := _trailing(segments)) >= FAN_OUT:
            run = segments[-count:]
            merged = self._merged(run, objects, schema, offset) if _may_merge(run) else None
            segments[-count:] = [merged] if merged else [msgspec.structs.replace(each, level=FULL) for each in run]

    def _merged(self, run: Sequence[Segment], objects: ObjectStore, schema: pa.Schema, offset: str) -> Segment | None:
        """``None`` where it cannot be: the files stay as they are, which is as true."""
        level = run[0].level + 1 + (len(run) >= FAN_OUT**2) + (len(run) >= FAN_OUT**3)
        fresh = self._folder / ".merging"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            rows = pa.concat_tables([as_in_force(self._read(each, objects), schema) for each in run])
            if self._keys is not None:
                rows = newest(rows, self._keys, offset)
            fresh.unlink(missing_ok=True)
            write_slice(rows, fresh)
            raw = fresh.read_bytes()
            name = str(Multihash.sha3_256(raw))
            fresh.chmod(0o444)
            fresh.replace(self._folder / name)
        except (Fault, OSError, pa.ArrowException, KeyError):
            fresh.unlink(missing_ok=True)
            return None
        return Segment(
            first=run[0].first,
            last=run[-1].last,
            block=run[-1].block,
            name=name,
            size=len(raw),
            rows=rows.num_rows,
            level=level,
            made=True,
        )

    def _read(self, segment: Segment, objects: ObjectStore) -> pa.Table:
        """Hashed first: something new is made of it. Raises Environment, Invalid, NotFound."""
        source = self.path(segment) if segment.made else objects.content(segment.hash)
        raw = source.read_bytes() if isinstance(source, Path) else source
        if Multihash.sha3_256(raw) != segment.hash:
            raise Environment(f"{segment.name} is damaged on disk", rule="segment-damaged")
        with open_slice(raw) as file:
            return file.read()


def newest(rows: pa.Table, keys: Sequence[str], offset: str) -> pa.Table:
    """The row of the greatest offset of each key, in the order of offsets; nulls are a key like any other.

    Keys are told apart by their bits: whoever takes more of them for equal finds the newest of those just the same.
    """
    names = [f"k{number}" for number in range(len(keys))]
    table = rows.select(list(keys)).rename_columns(names).append_column("offset", rows.column(offset))
    last = table.group_by(names, use_threads=False).aggregate([("offset", "max")]).column("offset_max")
    offsets = rows.column(offset).to_numpy()
    return rows.filter(pa.array(np.isin(offsets, last.to_numpy())))


def folder_of(folder: Path, dataset: DatasetId) -> Path:
    return folder / dataset.multibase


def forget(folder: Path, dataset: DatasetId) -> None:
    """Nothing of a dataset is here any more."""
    shutil.rmtree(folder_of(folder, dataset), ignore_errors=True)


def _trailing(segments: Sequence[Segment]) -> int:
    """How many at the end are of one level, and may be merged further."""
    level = segments[-1].level
    if level == FULL or (segments[-1].size > SMALL_SLICE and not level):
        return 0
    return _count(each.level == level and (level > 0 or each.size <= SMALL_SLICE) for each in reversed(segments))


def _count(those: Iterable[bool]) -> int:
    count = 0
    for each in those:
        if not each:
            break
        count += 1
    return count


def _may_merge(run: Sequence[Segment]) -> bool:
    return sum(each.size for each in run) <= MAX_BYTES and sum(each.rows for each in run) <= MAX_ROWS

"""Merges slices of earlier rows into segments, so that an engine is given few files, as an LSM tree merges runs.

The merge strategy decides which rows a segment keeps. Snapshot and UpsertStream need the newest row of each key, so
only that stays, retracted or not, and slices of any size are merged: the size of an ingest's input grows with the
number of keys. A Ledger needs all rows of a key, so all stay; only small slices are merged, since of larger ones the
engine is given those that may hold a key of the batch (``odfd.ingest.slices``). A strategy therefore finds in
segments what it would find in their slices, for any batch. Segments lie beside the chain and can be made anew at any
time: a set that is damaged, or of another history, is thrown away. Synchronous.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import msgspec

from chain.data.evolution import as_in_force
from chain.data.parquet import SliceWriter, open_slice
from chain.errors import Environment, Fault
from chain.ids import DatasetId
from chain.libraries import np, pa
from chain.model.source import MergeStrategy, primary_key, traits
from chain.multihash import Multihash
from chain.store.base import ObjectStore
from chain.store.files import check_file

FAN_OUT: Final = 8
"""Number of neighbours of one level that are merged into one: n small slices become some 7 * log8(n) files."""
MAX_MERGED: Final = 512
"""Neighbours merged at once when an index is rebuilt."""
SMALL_SLICE: Final = 1 << 20
"""Bytes up to which a slice of a ledger is merged with others."""
BASE: Final = 32 << 10
"""Bytes up to which a file of newest rows has level 0; each level holds FAN_OUT times more."""


class MergeLimits(NamedTuple):
    """Limits of the files that are merged into one."""

    size: int
    """Bytes of the merged files together."""
    rows: int


OF_ALL: Final = MergeLimits(16 << 20, 1 << 20)
"""Limits if all rows stay: a file is hashed whole before it is read, so it must not be large."""
OF_NEWEST: Final = MergeLimits(256 << 20, 1 << 22)
"""Limits if the newest row of each key stays. The keys of so many rows are held in memory, the rows are not."""
FULL: Final = -1
"""Level of a segment that is merged no further."""
SETS: Final = "set.json"
Keys: TypeAlias = tuple[str, ...] | None
"""Columns by whose values the newest rows are kept; ``None``: all rows are kept."""


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of blocks ``first`` to ``last``, as one file."""

    first: int
    last: int
    block: str
    """Hash of block ``last``, which commits to all blocks before it."""
    name: str
    """Hash of the file, as text."""
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
    return tuple(dict.fromkeys(primary_key(merge))) if traits(merge).newest_of_key else None


class SegmentFolder:
    """The segments of one dataset, for one choice of kept rows."""

    def __init__(self, folder: Path, dataset: DatasetId, keys: Keys) -> None:
        rule = Multihash.sha3_256(msgspec.json.encode(keys)).digest.hex()[:16]
        self._folder = folder_of(folder, dataset) / rule
        self._keys = keys

    def path(self, segment: Segment) -> Path:
        return self._folder / segment.name

    def load(self) -> list[Segment]:
        """Loads undamaged segments up to the first damaged one; empty if there are none."""
        try:
            found = msgspec.json.decode((self._folder / SETS).read_bytes(), type=_Set)
            segments = msgspec.json.decode(found.segments, type=list[Segment])
        except (OSError, msgspec.MsgspecError):
            return []
        if found.seal != str(Multihash.sha3_256(bytes(found.segments))):
            return []
        return self.whole(segments)

    def whole(self, segments: Sequence[Segment]) -> list[Segment]:
        """Returns the segments before the first one whose file is damaged."""
        for place, each in enumerate(segments):
            try:
                if each.made:
                    check_file(self.path(each), each.hash)
            except Fault:
                return list(segments[:place])
        return list(segments)

    def save(self, segments: Sequence[Segment]) -> None:
        """Saves these segments, and deletes files of others. On a disk error only the cache is lost."""
        listed = msgspec.json.encode(list(segments))
        line = msgspec.json.encode(_Set(str(Multihash.sha3_256(listed)), msgspec.Raw(listed)))
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            fresh = self._folder / f".{SETS}"
            fresh.write_bytes(line)
            fresh.replace(self._folder / SETS)
            wanted = {SETS, *(segment.name for segment in segments if segment.made)}
            for file in self._folder.iterdir():
                if file.name not in wanted:
                    file.unlink(missing_ok=True)
        except OSError:
            return

    def settle(
        self, segments: Sequence[Segment], known: int, objects: ObjectStore, schema: pa.Schema, offset: str
    ) -> list[Segment]:
        """Merges FAN_OUT neighbours of a level, so that the same rows are in fewer files.

        ``known``: the number of leading segments that are already merged as far as possible. ``offset``: name of the
        offset column.
        """
        settled = list(segments[:known])
        fresh = [msgspec.structs.replace(segment, level=self._level(segment)) for segment in segments[known:]]
        for _, alike in itertools.groupby(fresh, lambda each: each.level):
            # A long row of new segments is merged at once, not eight by eight.
            while run := list(itertools.islice(alike, MAX_MERGED)):
                settled += run
                self._settle_end(settled, objects, schema, offset)
        return settled

    def _level(self, slice_: Segment) -> int:
        if self._keys is not None:
            return _level_of(slice_.size)
        return FULL if slice_.size > SMALL_SLICE else 0

    def _settle_end(self, segments: list[Segment], objects: ObjectStore, schema: pa.Schema, offset: str) -> None:
        limits = OF_ALL if self._keys is None else OF_NEWEST
        while (count := _trailing(segments)) >= FAN_OUT:
            run = segments[-count:]
            merged = self._merge(run, objects, schema, offset) if _may_merge(run, limits) else None
            segments[-count:] = [merged] if merged else [msgspec.structs.replace(each, level=FULL) for each in run]

    def _merge(self, run: Sequence[Segment], objects: ObjectStore, schema: pa.Schema, offset: str) -> Segment | None:
        """Merges segments into one; returns ``None`` if that fails: the files then stay as they are."""
        fresh = self._folder / ".merging"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            fresh.unlink(missing_ok=True)
            rows = self._write(run, objects, schema, offset, fresh)
            size = fresh.stat().st_size
            with fresh.open("rb") as file:
                name = str(Multihash.sha3_256_of(file))
            fresh.chmod(0o444)
            fresh.replace(self._folder / name)
        except (Fault, OSError, pa.ArrowException, KeyError):
            fresh.unlink(missing_ok=True)
            return None
        level = run[-1].level + 1 + (len(run) >= FAN_OUT**2) + (len(run) >= FAN_OUT**3)
        return Segment(
            first=run[0].first,
            last=run[-1].last,
            block=run[-1].block,
            name=name,
            size=size,
            rows=rows,
            level=level if self._keys is None else _level_of(size),
            made=True,
        )

    def _write(self, run: Sequence[Segment], objects: ObjectStore, schema: pa.Schema, offset: str, target: Path) -> int:
        """Writes the rows that stay, batch by batch, with only keys and offsets in memory. Returns their number."""
        sources = [self._proven(each, objects) for each in run]
        kept = None if self._keys is None else self._newest(sources, schema, offset)
        with SliceWriter(target, schema) as writer:
            for source in sources:
                with open_slice(source) as file:
                    for batch in file.batches():
                        rows = as_in_force(pa.Table.from_batches([batch]), schema)
                        if kept is not None:
                            rows = rows.filter(pa.array(np.isin(rows.column(offset).to_numpy(), kept)))
                        writer.write(rows)
        return writer.rows

    def _newest(self, sources: Sequence[Path | bytes], schema: pa.Schema, offset: str) -> np.ndarray:
        """Returns the offsets of the rows that stay."""
        assert self._keys is not None
        asked = pa.schema([schema.field(name) for name in dict.fromkeys((*self._keys, offset))])
        tables = []
        for source in sources:
            with open_slice(source) as file:
                stored = set(file.schema.names)
                there = [name for name in asked.names if name in stored]
                tables += [as_in_force(pa.Table.from_batches([batch]), asked) for batch in file.batches(columns=there)]
        return newest(pa.concat_tables(tables), self._keys, offset)

    def _proven(self, segment: Segment, objects: ObjectStore) -> Path | bytes:
        """Returns a segment's file, its hash checked, since a new file is made of it. Raises Environment, NotFound."""
        source = self.path(segment) if segment.made else objects.content(segment.hash)
        if isinstance(source, Path):
            check_file(source, segment.hash)
        elif Multihash.sha3_256(source) != segment.hash:
            raise Environment(f"{segment.name} is damaged on disk", rule="segment-damaged")
        return source


def newest(rows: pa.Table, keys: Sequence[str], offset: str) -> np.ndarray:
    """Returns the greatest offset of each key; nulls are equal.

    Keys are distinguished by their bits: a reader that takes more of them as equal still finds the newest among these
    rows.
    """
    names = [f"k{number}" for number in range(len(keys))]
    table = rows.select(list(keys)).rename_columns(names).append_column("offset", rows.column(offset))
    last = table.group_by(names, use_threads=False).aggregate([("offset", "max")]).column("offset_max")
    return np.asarray(last.to_numpy())


def folder_of(folder: Path, dataset: DatasetId) -> Path:
    return folder / dataset.multibase


def forget(folder: Path, dataset: DatasetId) -> None:
    """Deletes all segments and bounds of a dataset."""
    shutil.rmtree(folder_of(folder, dataset), ignore_errors=True)


def _level_of(size: int) -> int:
    level = 0
    while size > BASE * FAN_OUT**level:
        level += 1
    return level


def _trailing(segments: Sequence[Segment]) -> int:
    """Returns the number of trailing segments to merge next, if enough: of the last one's level, or smaller between."""
    level = segments[-1].level
    if level == FULL:
        return 0
    return sum(1 for _ in itertools.takewhile(lambda each: FULL < each.level <= level, reversed(segments)))


def _may_merge(run: Sequence[Segment], limits: MergeLimits) -> bool:
    return sum(each.size for each in run) <= limits.size and sum(each.rows for each in run) <= limits.rows

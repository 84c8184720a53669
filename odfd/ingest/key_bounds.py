"""Bounds the keys in the older files of a ledger, so that an ingest is given only the files that can matter.

Only the engine knows the keys of a batch, once it has read it. It is therefore given the newest files, and instead of
the older ones a small file with their bounds (``engines.key_bounds``); if a key may be in some of these, it answers
with their names, and is run again with them. Bounds of a file are read once, and kept beside the segments in a file
named by its hash; one that is damaged, or of another history, is made anew. Synchronous.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from chain.errors import Fault
from chain.ids import DatasetId
from chain.libraries import pa
from chain.multihash import Multihash
from chain.store.files import check_file
from engines.footers import footer
from engines.key_bounds import NAME, bounds_table, read_bounds, write_bounds
from odfd.ingest.segments import FULL, Segment, folder_of

RECENT: Final = 8
"""Number of newest files that are always given; up to as many more are: most batches have no key in others."""


class KeyBounds:
    """The key bounds of one dataset's files, for the columns ``keys``. Old files change only when history does."""

    def __init__(self, folder: Path, dataset: DatasetId, keys: Sequence[str], operation_column: str) -> None:
        rule = Multihash.sha3_256("\0".join((*keys, operation_column)).encode()).digest.hex()[:16]
        self._folder = folder_of(folder, dataset) / f"bounds-{rule}"
        self._keys = tuple(keys)
        self._operation_column = operation_column
        self._covered: list[Segment] = []
        self._table: pa.Table | None = None
        self._name: Multihash | None = None

    def covering(
        self, segments: Sequence[Segment], schema: pa.Schema, path_of: Callable[[Segment], Path]
    ) -> tuple[int, Multihash, Path] | None:
        """Returns how many of the oldest files have their bounds in the bounds file, with its hash and path.

        ``None``: there are too few files, or bounds cannot be made; then all files are to be given.
        """
        count = len(self._covered)
        if self._table is not None and (count > len(segments) or list(segments[:count]) != self._covered):
            self._forget()
        if self._table is None:
            self._load(segments)
        count = len(self._covered)
        settled = min(_count_settled(segments), len(segments) - RECENT)
        if settled - count >= RECENT:
            try:
                self._extend(segments, settled, schema, path_of)
            except (Fault, OSError, pa.ArrowException):
                self._forget()
                return None
        if self._name is None:
            return None
        return len(self._covered), self._name, self._folder / str(self._name)

    def mend(self) -> bool:
        """Drops a damaged bounds file, to be made again on the next use. Returns whether it was damaged."""
        if self._name is None:
            return False
        try:
            check_file(self._folder / str(self._name), self._name)
        except Fault:
            self._forget()
            return True
        return False

    def _extend(
        self, segments: Sequence[Segment], count: int, schema: pa.Schema, path_of: Callable[[Segment], Path]
    ) -> None:
        """Writes the bounds of the first ``count`` files; reads only the footers of those that are new."""
        fresh = segments[len(self._covered) : count]
        footers = {each.name: footer(path_of(each)) for each in fresh}
        table = bounds_table(footers, schema, self._keys, self._operation_column)
        if self._table is not None and self._table.schema.equals(table.schema):
            table = pa.concat_tables([self._table, table])
        elif self._table is not None:
            self._forget()
            return self._extend(segments, count, schema, path_of)
        self._folder.mkdir(parents=True, exist_ok=True)
        staged = self._folder / ".writing"
        write_bounds(table, staged)
        with staged.open("rb") as file:
            name = Multihash.sha3_256_of(file)
        staged.replace(self._folder / str(name))
        for other in self._folder.iterdir():
            if other.name != str(name):
                other.unlink(missing_ok=True)
        self._table, self._name, self._covered = table, name, list(segments[:count])
        return None

    def _load(self, segments: Sequence[Segment]) -> None:
        """Loads the bounds file of an earlier process, if it is undamaged and belongs to these files."""
        try:
            for file in self._folder.iterdir():
                name = Multihash.parse(file.name)
                check_file(file, name)
                table = read_bounds(file)
                if table.column(NAME).to_pylist() == [each.name for each in segments[: table.num_rows]]:
                    self._table, self._name, self._covered = table, name, list(segments[: table.num_rows])
                    return
        except (Fault, OSError):
            return

    def _forget(self) -> None:
        self._covered, self._table, self._name = [], None, None


def _count_settled(segments: Sequence[Segment]) -> int:
    """Returns how many of the oldest files are never merged again: those up to the last full one."""
    behind = sum(1 for _ in itertools.takewhile(lambda each: each.level != FULL, reversed(segments)))
    return len(segments) - behind

"""Compares an engine's claims about a file that it wrote with the file's contents.

Used alike for ingested and for derived rows. Both hashes of a large file are computed on all cores, since the engine
has finished and the transaction has nothing else to wait for.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from chain.data.arrow_schema import differences
from chain.data.logical_hash import logical_hash_file
from chain.data.operations import CODES, Operations
from chain.data.parquet import open_slice
from chain.errors import Invalid
from chain.libraries import np
from chain.model.events import DataSlice, OffsetInterval
from chain.model.schema import DataSchema
from chain.multihash import Multihash

LARGE: Final = 4 << 20
"""Bytes of a file from which on hashing in threads saves more than it costs."""


def sha3_file(path: Path) -> Multihash:
    with path.open("rb") as file:
        return Multihash.sha3_256_of(file)


def measure_slice(path: Path, schema: DataSchema | None, offset: str) -> DataSlice:
    """Measures the slice in a file. Raises Invalid if it is malformed or (if given) has another ``schema``."""
    with open_slice(path) as file:
        found = file.stats(offset)
        wrong = differences(schema, file.schema) if schema is not None else []
    for each in wrong:
        raise Invalid(
            f"column {each.place} in the engine's file is {each.actual} and should be {each.expected}",
            rule="engine-answer",
        )
    if found.offsets is None or found.rows != found.offsets[1] - found.offsets[0] + 1:
        raise Invalid("the engine's file has gaps in its offsets", rule="engine-answer")
    logical, physical = both_hashes(path)
    return DataSlice(
        logical_hash=logical,
        physical_hash=physical,
        offset_interval=OffsetInterval(start=found.offsets[0], end=found.offsets[1]),
        size=path.stat().st_size,
    )


def operations(path: Path, column: str) -> Operations:
    """Counts operations in ``column``, from statistics where only one kind occurs. Raises Invalid for unknown codes.

    A slice without the column only appends: it is older than operations are.
    """
    counts = np.zeros(CODES, np.int64)
    with open_slice(path) as file:
        bounds = file.stats(column).offsets if column in file.schema.names else (0, 0)
        if bounds is not None and not 0 <= bounds[0] <= bounds[1] < CODES:
            raise Invalid(f"{path.name} holds operations {bounds[0]} to {bounds[1]}", rule="operation-code")
        if bounds is not None and bounds[0] == bounds[1]:
            counts[bounds[0]] = file.rows
        elif bounds is not None:
            for batch in file.batches(columns=[column]):
                counts += np.bincount(batch.column(0).to_numpy(zero_copy_only=False), minlength=CODES)
    return Operations(*counts.tolist())


def both_hashes(path: Path) -> tuple[Multihash, Multihash]:
    """Computes the logical and physical hash. Raises Invalid when the rows cannot be hashed."""
    if path.stat().st_size < LARGE:
        return logical_hash_file(path), sha3_file(path)
    with ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="measure") as pool:
        physical = pool.submit(sha3_file, path)
        return logical_hash_file(path, pool), physical.result()

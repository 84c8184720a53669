"""Measures the logical hash of rows against plain SHA3-256 of the bytes that it hashes, in one run."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa

from bench.measure import CPU, Row, Side, Size, in_turns
from chain.data import arrow0, arrow0_values
from chain.data.dictionaries import decoded
from chain.data.logical_hash import LogicalHasher
from chain.data.parquet import open_slice, write_slice


def sample(rows: int) -> pa.Table:
    """Numbers, times, short texts, a tenth of them missing in two columns: the shape of ordinary slices."""
    rng = np.random.default_rng(7)
    words = np.array(["alpha", "beta", "gamma delta", "x" * 20])
    absent = rng.random(rows) < 0.1
    return pa.table(
        {
            "offset": np.arange(rows),
            "op": np.zeros(rows, np.int32),
            "event_time": pa.array(np.arange(rows), pa.timestamp("ms", "UTC")),
            "city": pa.array(words[rng.integers(0, 4, rows)]),
            "ratio": rng.random(rows),
            "count": pa.array(rng.integers(0, 100, rows), mask=absent),
            "note": pa.array(words[rng.integers(0, 4, rows)], mask=absent),
        }
    )


def different(rows: int) -> pa.Table:
    """Adds a column of unique texts, for which a dictionary saves nothing."""
    numbers = np.random.default_rng(8).permutation(rows).astype(str)
    return sample(rows).append_column("key", pa.array(np.char.add("key-", numbers)))


def measure_hash(size: Size, folder: Path) -> list[Row]:
    """Measures on one core, and on all of them; rows as a reader of slices has them."""
    rows, rounds = size.pick(20_000, 1_000_000), size.pick(1, 7)
    batches, volume, plain = _sides(sample(rows), folder / "sample")
    others, others_volume, others_plain = _sides(different(rows), folder / "different")
    cores = len(os.sched_getaffinity(0))
    limit = "SHA3-256 of the bytes that it hashes"
    one, one_limit = in_turns(lambda: _hash(batches), plain, rounds, CPU)
    other, other_limit = in_turns(lambda: _hash(others), others_plain, rounds, CPU)
    with ThreadPoolExecutor(cores) as pool:
        many, many_one = in_turns(lambda: _hash(batches, pool), lambda: _hash(batches), rounds)
    facts: dict[str, float | str] = {"rows": rows, "MB hashed": volume / 1e6}
    return [
        Row(
            name="hash",
            measures="CPU time of the logical hash of rows",
            ours=Side(name="logical hash", costs=one, amount=volume, unit="B"),
            peer=Side(name=limit, costs=one_limit, amount=volume, unit="B"),
            goal="≤ 1.2",
            facts=facts,
        ),
        Row(
            name="hash, all different",
            measures="CPU time of the logical hash of rows with a column of texts that never repeat",
            ours=Side(name="logical hash", costs=other, amount=others_volume, unit="B"),
            peer=Side(name=limit, costs=other_limit, amount=others_volume, unit="B"),
            goal="≤ 1.2",
            facts={"rows": rows, "MB hashed": others_volume / 1e6},
        ),
        Row(
            name=f"hash on {cores} cores",
            measures="logical hash of rows, columns side by side",
            ours=Side(name=f"{cores} threads", costs=many, amount=volume, unit="B"),
            peer=Side(name="one", costs=many_one, amount=volume, unit="B"),
            goal="≤ 0.59 (1.7 times as fast on two)",
            facts=facts,
        ),
    ]


def _sides(table: pa.Table, path: Path) -> tuple[list[pa.RecordBatch], float, Callable[[], None]]:
    """A slice's rows as they are read, the number of bytes their hash takes in, and the plain hash of those."""
    write_slice(table, path)
    with open_slice(path) as source:
        batches = list(source.batches(encoded=True))
    parts = [bytes(part) for batch in batches for leaf in arrow0.leaves(batch) for part in arrow0_values.streams(leaf)]

    def plain() -> None:
        hasher = hashlib.sha3_256()
        for part in parts:
            hasher.update(part)

    return batches, float(sum(map(len, parts))), plain


def _hash(batches: list[pa.RecordBatch], pool: Executor | None = None) -> None:
    hasher = LogicalHasher(decoded(batches[0].schema), pool)
    for batch in batches:
        hasher.update(batch)
    hasher.finish()

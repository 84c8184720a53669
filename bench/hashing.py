"""Logical hash of rows against plain SHA3-256 of exactly the bytes that it hashes: the limit, in one run."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa

from bench.measure import CPU, Row, Side, Size, in_turns
from chain.data import arrow0
from chain.data.logical_hash import logical_hash


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


def measure_hash(size: Size, folder: Path) -> list[Row]:
    """On one core, and on all of them."""
    del folder
    rows, rounds = size.pick(20_000, 1_000_000), size.pick(1, 7)
    table = sample(rows)
    parts = [bytes(arrow0.stream(leaf)) for batch in table.to_batches(65_536) for leaf in arrow0.leaves(batch)]
    volume = float(sum(map(len, parts)))

    def plain() -> None:
        hasher = hashlib.sha3_256()
        for part in parts:
            hasher.update(part)

    cores = len(os.sched_getaffinity(0))
    limit = "SHA3-256 of the bytes that it hashes"
    one, one_limit = in_turns(lambda: logical_hash(table), plain, rounds, CPU)
    with ThreadPoolExecutor(cores) as pool:
        many, many_one = in_turns(lambda: logical_hash(table, pool), lambda: logical_hash(table), rounds)
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
            name=f"hash on {cores} cores",
            measures="logical hash of rows, columns side by side",
            ours=Side(name=f"{cores} threads", costs=many, amount=volume, unit="B"),
            peer=Side(name="one", costs=many_one, amount=volume, unit="B"),
            goal="≤ 0.59 (1.7 times as fast on two)",
            facts=facts,
        ),
    ]

"""Logical hash of rows against plain SHA3-256 of exactly the bytes that it hashes: the limit, in one run."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from chain.data import arrow0
from chain.data.logical_hash import logical_hash

ROWS = 1_000_000


def sample(rows: int = ROWS) -> pa.Table:
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


def logical_hash_over_sha3(repeats: int = 3) -> dict[str, float]:
    """``ratio``: time of the logical hash over that of SHA3-256 of the same bytes; both MB/s of hashed bytes."""
    table = sample()
    parts = [bytes(arrow0.stream(leaf)) for batch in table.to_batches(65_536) for leaf in arrow0.leaves(batch)]
    size = sum(map(len, parts)) / 1e6

    def plain() -> None:
        hasher = hashlib.sha3_256()
        for part in parts:
            hasher.update(part)

    limit, ours = _best(plain, repeats), _best(lambda: logical_hash(table), repeats)
    return {"megabytes": size, "sha3_mb_s": size / limit, "logical_mb_s": size / ours, "ratio": ours / limit}


def _best(work: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)

"""Logical hashes of many small slices at once: each is what ``logical_hash`` says of its rows.

Of a slice of a few rows the hash of each column costs less than getting at it does; here columns of many slices are
read as one, and only the hashing itself is done for each.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence

import pyarrow as pa

from chain.data import arrow0, arrow0_values
from chain.data.logical_hash import described, logical_hash
from chain.multihash import ARROW0_SHA3_256, Multihash


def logical_hashes(rows: pa.RecordBatch, bounds: Sequence[int]) -> list[Multihash]:
    """Of slices whose rows lie one after the other: slice ``i`` has those from ``bounds[i]`` to ``bounds[i + 1]``, at
    least one, and they are one row group of its file. ``rows`` hold no dictionaries. Raises Invalid as
    ``logical_hash``."""
    record, types, quirky = described(rows.schema)
    spans = list(itertools.pairwise(bounds))
    if quirky:  # what else is in its window matters
        return [logical_hash(rows.slice(start, stop - start)) for start, stop in spans]
    hashed = [hashlib.sha3_256(record) for _ in spans]
    for kind, leaf in zip(types, arrow0.leaves(rows), strict=True):
        empty = hashlib.sha3_256(kind)
        for slice_, part in zip(hashed, arrow0_values.parts(leaf, bounds), strict=True):
            column = empty.copy()
            column.update(part)
            slice_.update(column.digest())
    return [Multihash.from_digest(ARROW0_SHA3_256, each.digest()) for each in hashed]

"""Shows Arrow's numbers as NumPy arrays and back, without pandas.

``Array.to_numpy`` and ``pyarrow.array`` import pandas to look for its types, which takes longer than most commands.
"""

from __future__ import annotations

import functools
from typing import Any

from chain.libraries import np, pa


def numbers(array: pa.Array) -> np.ndarray:
    """Returns a read-only view of an integer array's slots; those of nulls hold arbitrary numbers."""
    dtype = _dtypes()[array.type]
    return np.frombuffer(array.buffers()[1], dtype, len(array), array.offset * dtype.itemsize)


def from_numbers(values: np.ndarray) -> pa.Array:
    """Makes an integer array over the memory of ``values``, ``(n,)``, copied unless it is contiguous."""
    type_ = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(type_, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def bits(array: pa.BooleanArray) -> np.ndarray:
    """Returns one byte, 0 or 1, for each of a packed array's bits; those of nulls are arbitrary."""
    packed = np.frombuffer(array.buffers()[1], np.uint8)
    return np.unpackbits(packed, count=array.offset + len(array), bitorder="little")[array.offset :]


@functools.cache
def _dtypes() -> dict[pa.DataType, np.dtype[Any]]:
    kinds = (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64)
    return {pa.from_numpy_dtype(kind): np.dtype(kind) for kind in kinds}

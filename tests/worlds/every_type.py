"""A column of every type that rows of a dataset can have, with values that are easily lost."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

AT: Final = 1_700_000_000_123_456_789
"""Nanoseconds, none of whose digits is zero at the end."""

TYPES: Final[dict[str, tuple[pa.DataType, list[Any]]]] = {
    "flag": (pa.bool_(), [True, None, False]),
    "i8": (pa.int8(), [-128, None, 127]),
    "i64": (pa.int64(), [-(2**63), None, 2**63 - 1]),
    "u8": (pa.uint8(), [0, None, 255]),
    "u16": (pa.uint16(), [0, None, 2**16 - 1]),
    "u32": (pa.uint32(), [0, None, 2**32 - 1]),
    "u64": (pa.uint64(), [0, None, 2**64 - 1]),
    "f32": (pa.float32(), [0.5, None, 3.4028234663852886e38]),
    "f64": (pa.float64(), [0.1, None, -0.0]),
    "small": (pa.decimal128(5, 2), [Decimal("-999.99"), None, Decimal("0.01")]),
    "large": (pa.decimal128(38, 10), [Decimal(10**27), None, Decimal("0.0000000001")]),
    "day": (pa.date32(), [-1, None, 20_000]),
    "ms": (pa.timestamp("ms", "UTC"), [-1, None, AT // 10**6]),
    "us": (pa.timestamp("us", "UTC"), [-1, None, AT // 10**3]),
    "ns": (pa.timestamp("ns", "UTC"), [-1, None, AT]),
    "clock_ms": (pa.time32("ms"), [0, None, 86_399_999]),
    "clock_us": (pa.time64("us"), [0, None, 86_399_999_999]),
    "clock_ns": (pa.time64("ns"), [0, None, 86_399_999_999_999]),
    "text": (pa.string(), ["", None, "zürich\0"]),
    "raw": (pa.binary(), [b"", None, b"\0\xff"]),
    "hash": (pa.binary(3), [b"\0\0\0", None, b"abc"]),
    "many": (pa.list_(pa.uint64()), [[], None, [2**64 - 1, None]]),
    "pair": (pa.list_(pa.timestamp("ns", "UTC"), 2), [[AT, 0], None, [None, 1]]),
    "inside": (
        pa.struct([
            pa.field("deep", pa.struct([pa.field("at", pa.timestamp("ns", "UTC")), pa.field("n", pa.uint32())])),
            pa.field("us", pa.timestamp("us", "UTC")),
            pa.field("clocks", pa.list_(pa.time64("ns"))),
        ]),
        [{"deep": {"at": AT, "n": 1}, "us": 1, "clocks": [1, None]}, None, {"deep": None, "us": None, "clocks": []}],
    ),
}  # fmt: skip


def every_type() -> pa.Table:
    """Three rows; the second has no values."""
    return pa.table({name: pa.array(values, kind) for name, (kind, values) in TYPES.items()})

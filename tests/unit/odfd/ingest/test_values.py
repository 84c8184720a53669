"""Values that a person writes, as columns hold them: exactly, or refused."""

from __future__ import annotations

from datetime import date, time
from decimal import Decimal

import pyarrow as pa
import pytest

from chain.errors import Invalid, Refused
from odfd.ingest.correction import nothing_of, value_of


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (pa.string(), "", ""),
        (pa.string(), " 007 ", " 007 "),
        (pa.int8(), "-128", -128),
        (pa.int64(), "9223372036854775807", 2**63 - 1),
        (pa.uint64(), "18446744073709551615", 2**64 - 1),
        (pa.int32(), "+7", 7),
        (pa.decimal128(5, 2), "1.5", Decimal("1.50")),
        (pa.decimal128(38, 10), "1e-10", Decimal("1e-10")),
        (pa.float64(), "0.1", 0.1),
        (pa.float64(), "-inf", float("-inf")),
        (pa.bool_(), "TRUE", True),
        (pa.date32(), "2024-02-29", date(2024, 2, 29)),
        (pa.time64("us"), "12:30:00.000001", time(12, 30, 0, 1)),
    ],
)
def test_a_value_is_what_was_written(kind: pa.DataType, text: str, value: object) -> None:
    found = value_of(text, pa.field("c", kind))
    assert (found.type, found.to_pylist()) == (kind, [value])


@pytest.mark.parametrize("text", ["2024-05-01T12:30:00Z", "2024-05-01T14:30:00.000+02:00", "2024-05-01 12:30:00"])
def test_times_are_instants(text: str) -> None:
    (found,) = value_of(text, pa.field("c", pa.timestamp("ms", "UTC"))).cast(pa.int64()).to_pylist()
    assert found == 1_714_566_600_000


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (pa.int8(), "128"),
        (pa.uint8(), "-1"),
        (pa.int64(), "1.0"),
        (pa.int64(), "0x1F"),
        (pa.int64(), "1_000"),
        (pa.int64(), "٣"),
        (pa.int64(), ""),
        (pa.decimal128(5, 2), "1.555"),
        (pa.decimal128(5, 2), "1000"),
        (pa.decimal128(5, 2), "nan"),
        (pa.float64(), "1e999"),
        (pa.float32(), "1e39"),
        (pa.float64(), "1_0"),
        (pa.bool_(), "1"),
        (pa.date32(), "2023-02-29"),
        (pa.timestamp("ms", "UTC"), "2024-05-01T12:30:00.0001Z"),
        (pa.timestamp("ms", "UTC"), "tomorrow"),
        (pa.time32("s"), "12:30:00.5"),
    ],
)
def test_what_a_column_cannot_hold_is_refused_by_its_name(kind: pa.DataType, text: str) -> None:
    with pytest.raises(Invalid, match="column 'c'") as refused:
        value_of(text, pa.field("c", kind))
    assert refused.value.hint


@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.binary(), pa.struct([("a", pa.int64())])])
def test_nested_values_are_not_written_as_texts(kind: pa.DataType) -> None:
    with pytest.raises(Refused, match="cannot be written as one text"):
        value_of("x", pa.field("c", kind))


def test_null_is_for_columns_that_may_be() -> None:
    assert nothing_of(pa.field("c", pa.int64())).to_pylist() == [None]
    with pytest.raises(Invalid, match="NOT NULL"):
        nothing_of(pa.field("c", pa.int64(), nullable=False))

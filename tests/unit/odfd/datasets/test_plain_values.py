"""Values of slices as JSON: whatever a slice may hold is told as it is."""

from __future__ import annotations

import subprocess
import sys
from typing import Any, Final

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.data.json_values import plain_values

DAYS = pa.array([-719_529, -719_528, 2_932_897, None], pa.int32()).cast(pa.date32())
SAID = ["-0001-12-31", "0000-01-01", "10000-01-01", None]


@pytest.mark.parametrize("kind", [pa.date32(), pa.date64()])
def test_dates_of_any_year(kind: pa.DataType) -> None:
    days = DAYS.cast(kind)
    assert plain_values(days) == SAID
    assert plain_values(pa.StructArray.from_arrays([days], ["day"])) == [{"day": said} for said in SAID]
    assert plain_values(pa.ListArray.from_arrays([0, 1, 4], days)) == [SAID[:1], SAID[1:]]


TIMES: Final = (
    *(pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")),
    pa.date32(),
    pa.date64(),
    pa.time64("ns"),
)


@pytest.mark.slow
@given(st.sampled_from(TIMES), st.integers(-(2**62), 2**62 - 1), st.integers(0, 62))
def test_times_are_rendered_as_arrow_casts_them(kind: pa.DataType, number: int, smaller: int) -> None:
    number >>= smaller
    if pa.types.is_date32(kind):
        number >>= 31
    elif pa.types.is_date64(kind):
        number = number >> 31 << 20
        number -= number % 86_400_000
    elif pa.types.is_time(kind):
        number %= 86_400 * 10**9
    values = pa.array([number, None], pa.int32() if pa.types.is_date32(kind) else pa.int64()).view(kind)
    assert plain_values(values) == values.cast(pa.string()).to_pylist()


@pytest.mark.parametrize("kind", [pa.list_(pa.int32()), pa.large_list(pa.int32()), pa.list_(pa.int32(), 2)])
def test_lists_of_a_slice(kind: pa.DataType) -> None:
    rows: list[Any] = [[1, 2], None, [3, 4], [None, 5]]
    values = pa.array(rows, kind)
    for start in range(5):
        assert plain_values(values.slice(start)) == rows[start:]
        assert plain_values(values.slice(start, 1)) == rows[start : start + 1]
    assert plain_values(pa.array([{"a": 1}, None, {"a": None}]).slice(1)) == [None, {"a": None}]
    assert plain_values(pa.array(["x", None, "y", "x"]).dictionary_encode().slice(1)) == [None, "y", "x"]


FEW_ROWS: Final = """
import sys
sys.modules["numpy"] = sys.modules["pandas"] = None  # as in the process of a query
import pyarrow as pa
from chain.data.json_values import plain_values
day = pa.date32()
for kind, value in (
    (pa.timestamp("us"), 1), (pa.timestamp("us", "UTC"), 1), (day, 1), (pa.time64("ns"), 1),
    (pa.list_(pa.int32()), [1]), (pa.list_(pa.int32(), 1), [1]), (pa.struct([("a", day)]), {"a": 1}),
    (pa.dictionary(pa.int8(), pa.string()), "x"),
):
    plain_values(pa.array([value, None], kind))
assert "pyarrow.compute" not in sys.modules
"""


@pytest.mark.slow
def test_few_rows_load_no_module_that_takes_longer_than_they_do() -> None:
    subprocess.run([sys.executable, "-c", FEW_ROWS], check=True)

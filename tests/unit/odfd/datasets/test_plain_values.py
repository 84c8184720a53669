"""Values of slices as JSON: whatever a slice may hold is told as it is."""

from __future__ import annotations

import pyarrow as pa
import pytest

from chain.data.json_values import plain_values

DAYS = pa.array([-719_529, -719_528, 2_932_897, None], pa.int32()).cast(pa.date32())
SAID = ["-0001-12-31", "0000-01-01", "10000-01-01", None]


@pytest.mark.parametrize("kind", [pa.date32(), pa.date64()])
def test_dates_of_any_year(kind: pa.DataType) -> None:
    days = DAYS.cast(kind)
    assert plain_values(days) == SAID
    assert plain_values(pa.StructArray.from_arrays([days], ["day"])) == [{"day": said} for said in SAID]
    assert plain_values(pa.ListArray.from_arrays([0, 1, 4], days)) == [SAID[:1], SAID[1:]]

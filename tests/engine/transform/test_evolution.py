"""An input that gains columns: the query goes on as if it had not, whatever its shape.

Spec: docs/spec/engine-semantics.md#evolution.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chain.data.parquet import write_slice

pytestmark = pytest.mark.engine
BLOCKS = 12
SHAPES = {
    "map": ("select * except (offset, op, system_time) from a", ()),
    "windows over a star": (
        "select time_bucket(interval '1' day, event_time) as event_time, count(*) as c, sum(v) as s "
        "from (select * from a) group by 1",
        (),
    ),
    "distinct rows of a changelog": ("select k, max(event_time) as event_time, sum(v) as s from a group by k", ("a",)),
    "a table": ("select k, max(event_time) as event_time, count(*) as c from (select * from a) group by k", ()),
}


def grow(stream, since):
    """The later slices get a column in the middle and one at the end."""
    for block in stream.blocks[since:]:
        if block.data_path is None:
            continue
        table = pq.read_table(block.data_path)
        notes = pa.array(["new"] * table.num_rows)
        table = table.add_column(4, "note", notes).append_column("more", pa.array([{"x": 1}] * table.num_rows))
        Path(block.data_path).unlink()
        write_slice(table, Path(block.data_path))


@pytest.mark.parametrize("shape", list(SHAPES))
def test_a_new_column_of_an_input_is_not_seen(lab, shape):
    sql, changelogs = SHAPES[shape]
    stream = lab.changing("grows", 5, BLOCKS) if changelogs else lab.stream(31, days=30, blocks=BLOCKS)
    schedule = [{"a": 5}, {"a": 3}, {"a": 4}]
    before = lab.run(sql, {"a": stream}, schedule, changelogs=changelogs)
    grow(stream, 6)
    after = lab.run(sql, {"a": stream}, schedule, changelogs=changelogs)
    assert before.rows
    assert (after.rows, after.state, after.watermark) == (before.rows, before.state, before.watermark)

"""A query that is declared anew over other inputs, on the engine alone: joins and versions too."""

from __future__ import annotations

import dataclasses

import pyarrow.parquet as pq
import pytest

from chain.data.arrow_schema import from_arrow
from chain.instant import MILLISECOND, from_millis
from chain.model.source import SqlQueryStep, TemporalTable, TransformSql
from conformance.coordinator import dataset_of, reopened
from engines.contract import MigrateRequest, Success, TransformRequest, TransformRequestInput, Vocab
from engines.request_control import RequestControl
from engines.spark.execution.handover import run_migration
from engines.spark.execution.transform import SharedCaches, run_transform
from engines.spark.planning.slice_facts import SliceReader
from engines.spark.sql.queries import Analyst

pytestmark = pytest.mark.engine
OF_BOTH = """select time_bucket(interval '1' day, event_time) as event_time, k, sum(v) as s
from (select event_time, k, v from a union all select event_time, k, v from b) group by 1, 2"""
OF_ONE = OF_BOTH.replace("(select event_time, k, v from a union all select event_time, k, v from b)", "a")
JOINED = """select a.event_time, a.k, b.v as s from a join b
on a.k = b.k and b.event_time between a.event_time - interval '2' day and a.event_time + interval '1' day"""
VERSIONS = """set odf.late.a = 'drop';
select a.event_time, a.k, b.v as s from a left join b
on a.k = b.k and a.event_time >= b.valid_from and a.event_time < b.valid_to"""
SEVERAL = {
    "an input more": (OF_ONE, "a", OF_BOTH, "ab", ()),
    "an input less": (OF_BOTH, "ab", OF_ONE, "a", ()),
    "a join in place of sums": (OF_BOTH, "ab", JOINED, "ab", ()),
    "versions in place of sums": (OF_ONE, "a", VERSIONS, "ab", (TemporalTable(name="b", primary_key=("k",)),)),
    "versions of what was summed": (OF_BOTH, "ab", VERSIONS, "ab", (TemporalTable(name="b", primary_key=("k",)),)),
}


def of(sql, tables=()):
    return TransformSql(engine="spark", queries=(SqlQueryStep(query=sql),), temporal_tables=tables or None)


@pytest.mark.parametrize("name", list(SEVERAL))
def test_inputs_may_come_and_go(lab, name):
    old, before, new, after, tables = SEVERAL[name]
    streams = {"a": lab.stream(81, days=30, blocks=10), "b": lab.stream(82, days=30, blocks=10)}
    caches = SharedCaches(Analyst(), SliceReader())
    first = lab.run(of(old), {alias: of_first(streams[alias], 6) for alias in before}, [dict.fromkeys(before, 6)])
    assert first.rows
    checkpoint, taken = lab.folder / "stopped", lab.folder / "taken"
    checkpoint.write_bytes(first.state)
    request = MigrateRequest(
        dataset_id=dataset_of("o"), system_time=from_millis(0), vocab=Vocab(),
        old_transform=of(old), transform=of(new, tables),
        old_inputs=tuple(given(streams[alias], alias, ()) for alias in before),
        query_inputs=tuple(
            given(streams[alias], alias, streams[alias].blocks[: 6 if alias in before else 0]) for alias in after
        ),
        output_schema=from_arrow(first.slices[0].schema), next_offset=len(first.rows),
        prev_checkpoint_path=str(checkpoint), new_checkpoint_path=str(taken), new_data_path=str(lab.folder / "none"),
    )  # fmt: skip
    answer = run_migration(lab.spark.newSession(), request, RequestControl(), caches)
    assert isinstance(answer, Success), answer
    assert answer.new_offset_interval is None
    rows, previous = first.data(), taken
    for stop in (8, 10):
        inputs = []
        for alias in after:
            start = stop - 2 if stop > 8 else 6 if alias in before else 0
            again = reopened(streams[alias].blocks[:start], dataset_of(alias), previous)
            inputs.append(given(streams[alias], alias, (*again, *streams[alias].blocks[start:stop])))
        data, checkpoint = lab.folder / f"data-{stop}", lab.folder / f"after-{stop}"
        step = TransformRequest(
            dataset_id=request.dataset_id, dataset_alias="out", system_time=request.system_time, vocab=Vocab(),
            transform=of(new, tables), query_inputs=tuple(inputs), next_offset=len(rows),
            prev_checkpoint_path=str(previous), new_checkpoint_path=str(checkpoint), new_data_path=str(data),
        )  # fmt: skip
        answer = run_transform(lab.spark.newSession(), step, RequestControl(), caches)
        assert isinstance(answer, Success), answer
        if answer.new_offset_interval is not None:
            table = pq.read_table(data)
            assert table["offset"][0].as_py() == len(rows)
            rows += table.drop_columns(["offset", "op", "system_time"]).to_pylist()
        previous = checkpoint
    always = lab.run(of(new, tables), {alias: streams[alias] for alias in after}, [dict.fromkeys(after, 10)])
    bound = first.watermark // MILLISECOND
    expected = [row for row in always.data() if row["event_time"].timestamp() * 1000 >= bound]
    assert expected
    assert rows == [*first.data(), *expected]
    assert previous.read_bytes() == always.state


def of_first(stream, count):
    return dataclasses.replace(stream, blocks=stream.blocks[:count], tables=stream.tables[:count])


def given(stream, alias, blocks):
    schema = next(block.data_path for block in stream.blocks if block.data_path)
    return TransformRequestInput(
        dataset_id=dataset_of(alias), dataset_alias=alias, query_alias=alias, vocab=Vocab(), blocks=tuple(blocks),
        schema_file=schema, changelog=False,
    )  # fmt: skip

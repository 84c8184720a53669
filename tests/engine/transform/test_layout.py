"""Partitions, plans and machines are Spark's affair: the digest of the output is the same over all of them.

Engine semantics, sections 2 and 11. ``ODF_SOAK`` also starts Spark anew: other cores, another zone and locale.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from chain.data.logical_hash import logical_hash
from chain.model.source import SqlQueryStep, TemporalTable, TransformSql

pytestmark = pytest.mark.engine
BLOCKS = 6
QUERIES = {
    "sums": ("select time_bucket(interval '1' day, event_time) as event_time, k, sum(v) as s, "
             "avg(cast(v as decimal(20, 2))) as m, upper(min(k)) as u from a group by 1, 2", "a", ""),
    "best": ("select event_time, k, v from (select event_time, k, v, row_number() over (partition by "
             "time_bucket(interval '3' day, event_time) order by v desc, k, event_time) as n from a) where n < 4",
             "a", ""),
    "join": ("select a.event_time, a.v, b.v as w from a left join b on a.k = b.k and b.event_time "
             "between a.event_time - interval '30' day and a.event_time", "ab", ""),
    "versions": ("select a.event_time, a.v, b.v as w from a left join b on a.k = b.k and a.event_time >= b.valid_from "
                 "and a.event_time < b.valid_to", "ab", "b"),
    "table": ("select k, max(event_time) as event_time, sum(v) as s from a group by k", "a", ""),
    "merged": ("select event_time, k, v from a union all select event_time, k, v from b", "ab", "b"),
}  # fmt: skip
LAYOUTS = {
    "many partitions": {
        "spark.sql.shuffle.partitions": "7", "spark.sql.files.maxPartitionBytes": "200",
        "spark.sql.files.openCostInBytes": "0", "spark.sql.leafNodeDefaultParallelism": "4",
    },
    "adaptive": {"spark.sql.adaptive.enabled": "true", "spark.sql.shuffle.partitions": "20"},
    "interpreted, sorted": {
        "spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.autoBroadcastJoinThreshold": "-1", "spark.sql.execution.useHashAggregateExec": "false",
    },
}  # fmt: skip


def digest(lab, name, settings):
    sql, aliases, changing = QUERIES[name]
    temporal = (TemporalTable(name="b", primary_key=("k",)),) if name == "versions" else None
    query = TransformSql(engine="spark", queries=(SqlQueryStep(query=sql),), temporal_tables=temporal)
    streams = {
        alias: lab.changing(f"{name}-{alias}", at, BLOCKS) if alias in changing
        else lab.stream(700 + at, days=20, blocks=BLOCKS)
        for at, alias in enumerate(aliases)
    }  # fmt: skip
    lab.settings = settings
    got = lab.run(query, streams, [dict.fromkeys(aliases, BLOCKS)], changelogs=changing)
    lab.settings = {}
    assert got.rows
    return str(logical_hash(pa.concat_tables(got.slices)))


@pytest.mark.parametrize("name", QUERIES)
def test_layout_does_not_show(lab, name):
    plain = digest(lab, name, {})
    assert {layout: digest(lab, name, settings) for layout, settings in LAYOUTS.items()} == dict.fromkeys(
        LAYOUTS, plain
    )


@pytest.mark.skipif("ODF_SOAK" not in os.environ, reason="starts Spark twice more; ODF_SOAK=1 runs it")
def test_machines_do_not_show(lab, tmp_path):
    here = {name: digest(lab, name, {}) for name in QUERIES}
    for cores, zone, locale in ((1, "Asia/Tokyo", "C"), (4, "America/New_York", "tr_TR.UTF-8")):
        environment = os.environ | {"TZ": zone, "LC_ALL": locale, "LANG": locale}
        script = Path(__file__).with_name("elsewhere.py")
        done = subprocess.run(
            [sys.executable, str(script), str(tmp_path / str(cores)), str(cores)],
            env=environment, cwd=Path(__file__).parents[3], capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert json.loads(done.stdout.splitlines()[-1]) == here

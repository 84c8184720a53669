"""Partitions, plans and machines are Spark's affair: the digest of the output is the same over all of them.

Spec: docs/spec/engine-semantics.md#law, #determinism, #clusters. What a session can change is changed here in the
session of all tests; a cluster of two workers, in another zone and locale than this process, costs a start of Spark.
Other differences between machines cost one each. ``ODF_OTHER_SPARK`` names the Python of a venv
with our packages and another version of Spark, 4.2 or later.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from bench.cluster import standalone_cluster
from chain.data.logical_hash import logical_hash
from chain.model.source import SqlQueryStep, TemporalTable, TransformSql
from engines.spark.sql import views
from worlds.depth import stride

pytestmark = pytest.mark.engine
TREE = Path(__file__).parents[3]
OTHER = os.environ.get("ODF_OTHER_SPARK")
BLOCKS = 6
ROWS = 12
"""Most of a block. Many enough to meet in a group, few enough for hundreds of small queries."""
DAY = "time_bucket(interval '1' day, event_time)"
QUERIES = {
    "sums": (f"select {DAY} as event_time, k, sum(v) as s, avg(cast(v as decimal(20, 2))) as m, upper(min(k)) as u, "
             "array_sort(collect_list(v)) as l, approx_count_distinct(v) as n, "
             "listagg(k, ',') within group (order by k) as t from a group by 1, 2", "a", ""),
    "floating": (f"select {DAY} as event_time, k, avg(v / 7.0D + 1e15 * (v % 2)) as m, sum(v * 0.1D) as s, "
                 "stddev(v / 3.0D) as d, max(v * -0.0D) as h, avg(v) as w, "
                 "avg(1e-300D * v) as tiny from a group by 1, 2", "a", ""),
    "percentile": (f"select {DAY} as event_time, k, percentile(v, 0.3) as p from a group by 1, 2", "a", ""),
    "best": ("select event_time, k, v from (select event_time, k, v, row_number() over (partition by "
             "time_bucket(interval '3' day, event_time) order by v desc, k, event_time) as n from a) where n < 4",
             "a", ""),
    "first": (f"select event_time, v, first_value(v) over (partition by {DAY} order by v, event_time) as f, "
              f"sum(v) over (partition by {DAY} order by v, event_time rows 2 preceding) as s from a", "a", ""),
    "running": ("select event_time, k, v, avg(v * 0.1D) over (partition by k order by event_time) as m, "
                "sum(v) over (partition by k order by event_time, v rows between 3 preceding and current row) as s, "
                "lag(v, 2, v) over (partition by k order by event_time, v) as l, "
                "first_value(v) over (partition by k order by event_time, v) as f from a", "a", ""),
    "sessions": ("select session_window(event_time, '6 hours').end as event_time, k, sum(v) as s from a "
                 "group by session_window(event_time, '6 hours'), k", "a", ""),
    "join": ("select a.event_time, a.v, b.v as w from a left join b on a.k = b.k and b.event_time "
             "between a.event_time - interval '30' day and a.event_time", "ab", ""),
    "versions": ("select a.event_time, a.v, b.v as w from a left join b on a.k = b.k and a.event_time >= b.valid_from "
                 "and a.event_time < b.valid_to", "ab", "b"),
    "table": ("select k, max(event_time) as event_time, sum(v) as s from a group by k", "a", ""),
    "merged": ("select event_time, k, v from a union all select event_time, k, v from b", "ab", "b"),
    "texts": ("select event_time, upper(concat('i', k)) as u, initcap(concat('ix ', k)) as i, v / 7.0D as r, "
              "date_format(event_time, 'EEEE d MMMM yyyy HH:mm') as d, format_number(v / 3, 3) as n, "
              "cast(event_time as string) as t, hour(event_time) as h, cast(v / 7.0D as string) as f from a", "a", ""),
}  # fmt: skip
COMPILED = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}
"""As engines have it; the session of all tests has not."""
UNCOMPILED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
INTERPRETED = "interpreted, sorted"
PARTITIONS, MORE = "spark.sql.shuffle.partitions", "one more than there are rows"
LAYOUTS = {
    "many partitions": {
        **UNCOMPILED, "spark.sql.shuffle.partitions": "7", "spark.sql.files.maxPartitionBytes": "200",
        "spark.sql.files.openCostInBytes": "0", "spark.sql.leafNodeDefaultParallelism": "4",
    },
    "more partitions than rows": {**UNCOMPILED, PARTITIONS: MORE},
    "adaptive": {
        **UNCOMPILED, "spark.sql.adaptive.enabled": "true", "spark.sql.shuffle.partitions": "20",
    },
    INTERPRETED: {
        **UNCOMPILED, "spark.sql.autoBroadcastJoinThreshold": "-1", "spark.sql.execution.useHashAggregateExec": "false",
    },
    "spilling": {
        "spark.sql.TungstenAggregate.testFallbackStartsAt": "1,2", "spark.sql.autoBroadcastJoinThreshold": "-1",
        "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "1",
        **{f"spark.sql.{operator}.buffer.{kind}": "1"
           for operator in ("windowExec", "sortMergeJoinExec", "sessionWindow")
           for kind in ("in.memory.threshold", "spill.threshold")},
    },
}  # fmt: skip
"""The last one makes operators give up their memory after a row or two; a small heap does so only after millions. What
only spreads work is not compiled, which would take most of a small query; ``plain`` and spilling ones are."""
ASKING = ("sums", "texts")
"""Queries of which functions could ask a machine for its locale or zone."""
FOREIGN = (
    "-XX:TieredStopAtLevel=1 -Duser.language=tr -Duser.country=TR -Duser.timezone=Asia/Tokyo -Dfile.encoding=ISO-8859-9"
)


def digest(lab, name, settings, rows=ROWS):
    sql, aliases, changing = QUERIES[name]
    temporal = (TemporalTable(name="b", primary_key=("k",)),) if name == "versions" else None
    query = TransformSql(engine="spark", queries=(SqlQueryStep(query=sql),), temporal_tables=temporal)
    streams = {
        alias: lab.changing(f"{name}-{alias}", at, BLOCKS) if alias in changing
        else lab.stream(700 + at, days=20, blocks=BLOCKS, rows=rows)
        for at, alias in enumerate(aliases)
    }  # fmt: skip
    many = 1 + sum(table.num_rows for stream in streams.values() for table in stream.tables if table is not None)
    lab.settings = COMPILED | settings | ({PARTITIONS: str(many)} if settings.get(PARTITIONS) == MORE else {})
    got = lab.run(query, streams, [dict.fromkeys(aliases, BLOCKS)], changelogs=changing)
    lab.settings = {}
    assert got.rows
    return str(logical_hash(pa.concat_tables(got.slices)))


KNOWN = {}
"""Digests of this process, each made once."""


def layouts_of(name):
    """Each meets some queries each time, and all of them each night."""
    place = list(QUERIES).index(name)
    return [layout for number, layout in enumerate(LAYOUTS) if (place + number) % stride() == 0]


def plain(lab, name):
    if name not in KNOWN:
        KNOWN[name] = digest(lab, name, {})
    return KNOWN[name]


def spilled(spark):
    """Bytes that stages of this Spark have written to disk for want of memory."""
    context = spark.sparkContext
    jvm = context._jvm
    none, quantiles = jvm.java.util.ArrayList(), context._gateway.new_array(jvm.double, 0)
    stages = context._jsc.sc().statusStore().stageList(none, False, False, quantiles, none)
    return sum(stages.apply(at).diskBytesSpilled() for at in range(stages.size()))


def elsewhere(folder, environ=None, python=sys.executable, **request):
    """What a Spark of its own makes of all queries."""
    script = Path(__file__).with_name("elsewhere.py")
    request = {"cores": 2, "heap": "512m", "master": None, "rows": ROWS, "settings": {}, "interpreted": []} | request
    env = os.environ | {"PYTHONPATH": f"{TREE}:{TREE / 'tests'}"} | (environ or {})
    argv = [python, str(script), str(folder), json.dumps(request)]
    done = subprocess.run(argv, env=env, cwd=TREE, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", QUERIES)
def test_layout_does_not_show(lab, name, monkeypatch):
    """Nor does it show that few rows reach Spark in memory: layouts are of files."""
    here = plain(lab, name)
    monkeypatch.setattr(views, "FEW", -1)
    before = spilled(lab.spark)
    layouts = layouts_of(name)
    assert {layout: digest(lab, name, LAYOUTS[layout]) for layout in layouts} == dict.fromkeys(layouts, here)
    if name in ("first", "join") and "spilling" in layouts:
        assert spilled(lab.spark) > before


@pytest.mark.nightly
def test_a_cluster_in_another_country_does_not_show(lab, tmp_path):
    """Compiled by driver and both executors what asks a machine for anything, the rest interpreted."""
    here = {name: plain(lab, name) for name in QUERIES}
    foreign = {"JAVA_TOOL_OPTIONS": FOREIGN, "TZ": "Asia/Tokyo", "LC_ALL": "tr_TR.UTF-8"}
    with standalone_cluster(tmp_path / "cluster", environ=foreign) as master:
        there = elsewhere(
            tmp_path / "there", foreign, master=master, settings={"spark.sql.shuffle.partitions": "5"},
            interpreted=[name for name in QUERIES if name not in ASKING],
        )  # fmt: skip
    assert there["executors"] == 2
    assert there["digests"] == here


@pytest.mark.nightly
@pytest.mark.skipif(not OTHER, reason="no second Spark: ODF_OTHER_SPARK names the Python of a venv that has one")
def test_another_version_of_spark_does_not_show(lab, tmp_path):
    """But in what is computed in floating point on the way: percentiles are interpolated otherwise in 4.2 and 4.3."""
    here = {name: plain(lab, name) for name in QUERIES if name != "percentile"}
    there = elsewhere(tmp_path / "there", python=OTHER)["digests"]
    assert {name: there[name] for name in here} == here


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("cores", "zone", "locale"),
    [(1, "Asia/Tokyo", "C"), (4, "America/New_York", "tr_TR.UTF-8"), (2, "Pacific/Apia", "ar_EG.UTF-8")],
)
def test_machines_do_not_show(lab, tmp_path, cores, zone, locale):
    here = {name: plain(lab, name) for name in QUERIES}
    environ = {"TZ": zone, "LC_ALL": locale, "LANG": locale, "JAVA_TOOL_OPTIONS": f"-Duser.timezone={zone}"}
    assert elsewhere(tmp_path / "there", environ, cores=cores)["digests"] == here

"""The law for queries that nobody thought of: random compositions of one to three operators.

Two dozen queries, four thousand in ``make soak``; those that are no transform are refused, in words known here.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest
from pyspark.sql import types as st

from conformance.compositions import composition
from conformance.coordinator import Bed
from conformance.corrections import corrected_composition
from conformance.mutants import mutate
from conformance.runs import FIRST, RUNS, run
from engines.contract import Vocab
from engines.spark.analysis.classify import Mode
from engines.spark.analysis.declarations import read_query
from engines.spark.sql.views import QueryInput
from worlds.depth import first_now, share

pytestmark = pytest.mark.engine
COLUMNS = st.StructType(
    [
        st.StructField("offset", st.LongType()),
        st.StructField("op", st.IntegerType()),
        st.StructField("system_time", st.TimestampType()),
        st.StructField("event_time", st.TimestampType()),
        st.StructField("k", st.StringType()),
        st.StructField("v", st.LongType()),
    ]
)
QUERIES = max(share(24), 2 * RUNS)
REFUSED = {"table-shape", "mixed-mode", "partial-order"}
"""Why a composition may be no transform."""


def accepted(analyst, case):
    """The mode, or the codes of what is wrong."""
    views = [QueryInput(alias, COLUMNS, "event_time") for alias in case.inputs]
    found = analyst.analyse(None, read_query(case.sql).steps, views, Vocab())
    if found.classification is not None:
        return found.classification.mode
    return {diagnostic.code for diagnostic in found.diagnostics}


def test_any_composition_gives_what_the_oracle_says(analyst, cheap, duck, troubles, tmp_path):
    number, tried, rows, verdicts, over_history = FIRST, 0, 0, Counter(), 0
    while tried < QUERIES:
        case, number = composition(number), number + 1
        verdict = accepted(analyst, case)
        verdicts[str(verdict)] += 1
        if verdict is not Mode.FINAL:
            assert verdict is Mode.LOG or verdict <= REFUSED, (verdict, case.text)
            continue
        tried, over_history = tried + 1, over_history + (case.running is not None)
        case.tell(duck)
        for history in range(1 + RUNS // 1000):
            try:
                rows += run(case, history, cheap, duck, tmp_path, troubles).rows
            except AssertionError as fault:
                raise AssertionError(f"{case.name}, history {history}: {fault}\n{case.text}\n{case.lows}") from fault
    assert rows > 10 * QUERIES
    assert over_history > QUERIES // 8, verdicts
    assert verdicts[str(Mode.FINAL)] > sum(verdicts.values()) / 2, verdicts


def test_any_composition_of_corrected_windows_gives_what_the_oracle_says(cheap, duck, troubles, tmp_path):
    ops = Counter()
    for number in range(FIRST, FIRST + QUERIES):
        case = corrected_composition(number)
        case.tell(duck)
        try:
            run(case, 0, cheap, duck, tmp_path, troubles)
        except AssertionError as fault:
            raise AssertionError(f"{case.name}: {fault}\n{case.head}{case.text}") from fault
        wanted, _ = case.expected(duck, case.histories(random.Random(f"{case.name} 0")))
        ops.update(op for op, *_ in wanted)
    assert min(ops[op] for op in range(4)) >= QUERIES // 5, "histories without corrections prove nothing"


@pytest.mark.parametrize(
    "kind",
    first_now(
        [
            "lateness per transaction",
            "bound without the shift",
            "bound from one input",
            "open rows dropped",
            "no output filter",
            "earlier rows forgotten",
            "one row kept",
        ]
    ),
)
def test_a_broken_engine_is_caught_by_some(kind, analyst, cheap, duck, tmp_path, monkeypatch):
    mutate(kind, monkeypatch)
    for number in range(40):
        case = composition(number)
        if accepted(analyst, case) is not Mode.FINAL:
            continue
        case.tell(duck)
        try:
            run(case, 0, cheap, duck, tmp_path)
        except AssertionError:
            return
    pytest.fail("the broken engine gave the right answers")


def test_spark_agrees_on_some(spark_root, analyst, duck, tmp_path):
    tried, number = 0, 0
    while tried < 3 + RUNS // 100:
        case, number = composition(number), number + 1
        if accepted(analyst, case) is Mode.FINAL:
            tried += 1
            run(case, 1, Bed(spark_root.newSession, analyst), duck, tmp_path)
    run(corrected_composition(0), 1, Bed(spark_root.newSession, analyst), duck, tmp_path)

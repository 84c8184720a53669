"""Nexmark as a conformance suite: each query gives DuckDB's rows over all events, however its inputs are cut."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from conformance import nexmark
from conformance.coordinator import Bed
from conformance.duck import Duck
from conformance.histories import ADDED, CORRECT_TO
from engines.contract import Vocab
from engines.spark.analysis.declarations import read_query
from engines.spark.catalyst.types import struct_type
from engines.spark.sql.queries import Analyst
from engines.spark.sql.views import QueryInput
from worlds.depth import stride

pytestmark = pytest.mark.engine
QUERIES = nexmark.queries()
EVENTS = nexmark.events()
DOCUMENT = Path(__file__).parents[3] / "docs" / "reference" / "nexmark.md"


@pytest.fixture
def bed(spark_root: SparkSession, analyst: Analyst) -> Bed:
    return Bed(spark_root.newSession, analyst)


ACCEPTED = [name for name, query in QUERIES.items() if query.transforms]


def slicings(name):
    """At once, and in one of the other ways; each night in all."""
    first, *others = nexmark.SLICINGS
    return [first, *others[ACCEPTED.index(name) % min(stride(), 2) :: stride()]]


@pytest.mark.parametrize("name", ACCEPTED)
def test_every_slicing_gives_what_the_oracle_says(name, bed, duck: Duck, tmp_path):
    query = QUERIES[name]
    inputs = nexmark.lay_out(tmp_path, EVENTS)
    came = {slicing: nexmark.compute(query, slicing, inputs, bed, tmp_path) for slicing in slicings(name)}
    whole = came["at once"]
    wanted = nexmark.expected(query, EVENTS, duck, whole.columns[-1])
    assert len(wanted) > 1, "a result without rows proves nothing"
    assert standing(whole.outcomes[-1].rows) == Counter(wanted)
    for slicing, got in came.items():
        for mine, its in zip(whole.outcomes, got.outcomes, strict=True):
            assert its.rows == mine.rows, slicing
            assert (its.late, its.watermark) == (0, mine.watermark), slicing
        assert got.outcomes[0].state == whole.outcomes[0].state, "state must be a function of the cut"


def standing(rows):
    """What is left of a history: (event time, columns) as often as it stands."""
    left: Counter[tuple[object, ...]] = Counter()
    for op, *row in rows:
        left[tuple(row)] += 1 if op in (ADDED, CORRECT_TO) else -1
    assert min(left.values()) >= 0
    return +left


def test_the_oracle_compares_values_and_not_only_counts():
    wanted = Counter([(1, "a"), (2, "b")])
    assert standing([(0, 1, "a"), (0, 2, "c"), (2, 2, "c"), (3, 2, "b")]) == wanted
    assert standing([(0, 1, "a")]) != wanted


@pytest.mark.parametrize("name", QUERIES)
def test_the_published_query_is_a_transform_or_refused_with_a_known_finding(name, bed):
    query = QUERIES[name]
    views = [
        QueryInput(alias, struct_type(schema), "event_time", changes=False)
        for alias, schema in nexmark.schemas().items()
    ]
    steps = read_query(nexmark.Step(query.published).transform).steps
    found = bed.analyst.analyse(bed.session(), steps, views, Vocab())
    codes = list(dict.fromkeys(each.code for each in found.diagnostics))
    assert codes == query.refused, [each.message for each in found.diagnostics]
    assert (found.classification is None) == bool(query.refused)


def test_the_document_counts_them():
    assert nexmark.table(QUERIES) in DOCUMENT.read_text()

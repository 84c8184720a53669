"""A file without rows decides no types where they are guessed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from chain.model.source import (
    MergeAppend,
    MergeSnapshot,
    ReadCsv,
    ReadGeoJson,
    ReadJson,
    ReadNdJson,
    ReadStep,
    SqlQueryStep,
    TransformSql,
)
from engines.contract import Success

NONE = '{"type": "FeatureCollection", "features": []}'
FEATURE = (
    '{"type": "FeatureCollection", "features": [{"type": "Feature", "properties": {"n": 1, "city": "A"},'
    ' "geometry": null}]}'
)
FORMATS = [
    pytest.param(ReadCsv(header=True, infer_schema=True), "city,n\n", "city,n\nA,1\n", id="Csv"),
    pytest.param(ReadCsv(header=False, infer_schema=True), "\n\n", "A,1\n", id="Csv-no-header"),
    pytest.param(ReadNdJson(), "\n \n", '{"city": "A", "n": 1}\n', id="NdJson"),
    pytest.param(ReadJson(), "[]", '[{"city": "A", "n": 1}]', id="Json"),
    pytest.param(ReadGeoJson(), NONE, FEATURE, id="GeoJson"),
]


@pytest.mark.parametrize("step,empty,full", FORMATS)
def test_the_first_file_with_rows_decides_them(
    dataset: Callable[..., Any], step: ReadStep, empty: str, full: str
) -> None:
    made = dataset(MergeAppend())
    answer = made.ingest(empty, step)
    assert isinstance(answer, Success), answer
    assert answer.schema is None, "no schema is written"
    assert answer.rows is not None
    assert answer.rows.remarks == ("input-1.csv: there are no rows, so no types are guessed from it",)
    done = made.ingest(full, step)
    assert isinstance(done, Success), done
    assert {type(each) for row in made.rows() for each in row[4:] if each is not None} == {str, int}
    assert isinstance(made.ingest(empty, step), Success), "nor is it refused behind others"
    together = made.ingest([empty, full, empty], step)
    assert isinstance(together, Success), together
    assert together.rows is not None
    assert together.rows.read == 1


def test_it_still_empties_a_snapshot(dataset: Callable[..., Any]) -> None:
    made = dataset(MergeSnapshot(primary_key=("city",)))
    step = ReadCsv(header=True, infer_schema=True)
    assert isinstance(made.ingest("city,n\nA,1\nB,2\n", step), Success)
    assert isinstance(made.ingest("city,n\n", step), Success)
    assert made.last().column("op").to_pylist() == [1, 1]


def test_rows_that_a_query_makes_of_none_are_kept(dataset: Callable[..., Any]) -> None:
    made = dataset(MergeAppend())
    query = TransformSql(engine="spark", queries=(SqlQueryStep(query="select count(*) as n from input"),))
    answer = made.ingest("city\n", ReadCsv(header=True, infer_schema=True), preprocess=query)
    assert isinstance(answer, Success), answer
    assert made.last().column("n").to_pylist() == [0]


def test_texts_that_nobody_guesses_need_no_row(dataset: Callable[..., Any]) -> None:
    """Without inference every column of CSV is text, whatever its rows."""
    made = dataset(MergeAppend())
    answer = made.ingest("city,n\n", ReadCsv(header=True))
    assert isinstance(answer, Success), answer
    assert answer.schema is not None

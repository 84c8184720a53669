"""One Spark session for all engine tests of a run: starting one costs seconds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from conformance.coordinator import Bed, Troubles
from conformance.duck import Duck, in_place_of_spark
from engines.spark.execution import inputs
from engines.spark.runtime.class_archive import find_archive, install_folder
from engines.spark.runtime.java import find_java
from engines.spark.runtime.session import SessionOptions, start_session, stop_session
from engines.spark.sql.queries import Analyst


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Who uses Spark says so, however it comes by it: ``make quick`` starts none."""
    for item in items:
        if isinstance(item, pytest.Function) and "spark_root" in item.fixturenames:
            item.add_marker(pytest.mark.engine)


@pytest.fixture(scope="session")
def spark_root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    scratch = tmp_path_factory.mktemp("spark")
    archive = find_archive(install_folder(), find_java(os.environ, scratch))
    spark = start_session(SessionOptions(scratch=scratch, cores=2, heap="1g", quick=True, archive=archive))
    yield spark
    stop_session(spark)


@pytest.fixture
def spark(spark_root: SparkSession) -> SparkSession:
    """A session of the test's own, so that no view is seen by another test."""
    return spark_root.newSession()


class Sparks(Analyst):
    """Analyses with the real Spark, whatever runs the queries."""

    def __init__(self, spark: SparkSession) -> None:
        super().__init__()
        self._spark = spark

    def analyse(self, session: object, *given: Any) -> Any:
        return super().analyse(self._spark.newSession(), *given)


@pytest.fixture(scope="session")
def analyst(spark_root: SparkSession) -> Analyst:
    return Sparks(spark_root)


@pytest.fixture(scope="session")
def duck() -> Duck:
    return Duck()


@pytest.fixture
def cheap(analyst: Analyst, duck: Duck, monkeypatch: pytest.MonkeyPatch) -> Bed:
    """Engines whose queries DuckDB runs, and that take even the fewest rows for many."""
    in_place_of_spark(monkeypatch)
    monkeypatch.setattr(inputs, "MANY", 0)
    return Bed(duck.newSession, analyst)


@pytest.fixture
def troubles(duck: Duck, monkeypatch: pytest.MonkeyPatch) -> Troubles:
    made = Troubles(monkeypatch)
    monkeypatch.setattr(duck, "before_query", made.query)
    return made

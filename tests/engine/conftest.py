"""One JVM for all engine tests of a process: starting one costs seconds. One that ends is told of, and replaced."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession

from conformance.coordinator import Bed, Troubles
from conformance.duck import Duck, in_place_of_spark
from engines.spark.execution import inputs
from engines.spark.runtime import session
from engines.spark.runtime.java import find_archive, find_java, install_folder
from engines.spark.runtime.jvm import REAPED_SECONDS, Jvm
from engines.spark.runtime.session import SessionOptions
from engines.spark.runtime.settings import jvm_options, spark_settings
from engines.spark.sql.queries import Analyst

INTERPRETED: Final = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""Queries over a few rows, which are over before they would have been compiled: a third of the time of all tests here.
What is compiled gives the same: ``test_layout`` shows it of queries, ``test_functions`` of all functions."""

ROOMY: Final = "-Xms1g -Xmn512m -XX:MetaspaceSize=256m"
"""Memory of a JVM that plans thousands of small queries: collecting took a fifteenth of its time, seven times in full,
mostly for classes, which all stay."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Who uses Spark says so, however it comes by it: ``make quick`` starts none."""
    for item in items:
        if isinstance(item, pytest.Function) and "jvm" in item.fixturenames:
            item.add_marker(pytest.mark.engine)


@pytest.fixture(scope="session")
def jvm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jvm]:
    scratch = tmp_path_factory.mktemp("spark")
    archive = find_archive(install_folder(), find_java(os.environ, scratch))
    few = "ODF_FUZZ" not in os.environ  # two hundred thousand queries do pay back what the second compiler takes
    jvm = Jvm(SessionOptions(scratch=scratch, cores=2, heap="2g", quick=few, archive=archive))
    yield jvm
    left = tasks_at_work(jvm)
    jvm.stop()
    assert not left, "a task that a test began is at work still, and has taken a core from all tests after it"


@pytest.fixture(scope="module", autouse=True)
def interpreted() -> Iterator[None]:
    """How the JVM is started. Not for the session: tests of other folders may come in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "spark_settings", lambda *given: spark_settings(*given) | INTERPRETED)
        patch.setattr(session, "jvm_options", lambda *given: f"{jvm_options(*given)} {ROOMY}")
        yield


def tasks_at_work(jvm: Jvm) -> int:
    """In a JVM that was started and lives."""
    if jvm._life is None or jvm._life.code is not None:
        return 0
    executors = jvm._life.spark.sparkContext._jsc.sc().statusStore().executorList(True)
    return sum(executors.apply(at).activeTasks() for at in range(executors.size()))


@pytest.fixture(autouse=True)
def tells_of_a_lost_jvm(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test in which the JVM ends says how it ended; the next one gets another."""
    jvm = request.getfixturevalue("jvm") if "jvm" in request.fixturenames else None
    failures = request.session.testsfailed
    yield
    lost = jvm and jvm.why_lost(REAPED_SECONDS if request.session.testsfailed > failures else 0)
    assert lost is None, lost


@pytest.fixture
def spark_root(jvm: Jvm) -> SparkSession:
    return jvm.session()


@pytest.fixture
def spark(spark_root: SparkSession) -> SparkSession:
    """A session of the test's own, so that no view is seen by another test."""
    return spark_root.newSession()


class Sparks(Analyst):
    """Analyses with the real Spark, whatever runs the queries."""

    def __init__(self, jvm: Jvm) -> None:
        super().__init__()
        self._jvm = jvm

    def analyse(self, session: object, *given: Any) -> Any:
        return super().analyse(self._jvm.session().newSession(), *given)


@pytest.fixture(scope="session")
def analyst(jvm: Jvm) -> Analyst:
    return Sparks(jvm)


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

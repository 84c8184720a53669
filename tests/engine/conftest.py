"""One Spark session for all engine tests of a run: starting one costs seconds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from engines.spark.session import SessionOptions, start_session, stop_session


@pytest.fixture(scope="session")
def spark_root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    spark = start_session(SessionOptions(scratch=tmp_path_factory.mktemp("spark"), cores=2, heap="1g"))
    yield spark
    stop_session(spark)


@pytest.fixture
def spark(spark_root: SparkSession) -> SparkSession:
    """A session of the test's own, so that no view is seen by another test."""
    return spark_root.newSession()

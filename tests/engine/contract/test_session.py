"""A process runs one Spark, and nobody ends the one that another has started."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from engines.errors import EngineLost
from engines.spark.runtime.session import SessionOptions, start_session

pytestmark = pytest.mark.engine


def test_a_second_session_is_refused_and_the_first_one_lives(spark_root: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(EngineLost, match="runs Spark already"):
        start_session(SessionOptions(scratch=tmp_path))
    assert spark_root.range(3).count() == 3

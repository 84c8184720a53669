"""The queries that the class data archive is recorded with work, and leave nothing behind for others to see."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from engines.spark.runtime.warm_up import rehearse

pytestmark = pytest.mark.engine


def test_a_rehearsal_works_and_leaves_no_view(spark: SparkSession, tmp_path: Path) -> None:
    rehearse(spark, tmp_path / "rehearsal")
    assert not spark.catalog.listTables()

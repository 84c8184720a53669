"""A process runs one Spark, and nobody ends the one that another has started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import REFL_GET_UNKNOWN_SUB_COMMAND_NAME, REFLECTION_COMMAND_NAME
from pyspark.sql import SparkSession

from engines.errors import EngineLost
from engines.spark.runtime.session import SessionOptions, start_session

pytestmark = pytest.mark.engine
LOOK_UP = f"{REFLECTION_COMMAND_NAME}{REFL_GET_UNKNOWN_SUB_COMMAND_NAME}"


def test_a_second_session_is_refused_and_the_first_one_lives(spark_root: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(EngineLost, match="runs Spark already"):
        start_session(SessionOptions(scratch=tmp_path))
    assert spark_root.range(3).count() == 3


def test_names_of_the_jvm_are_looked_up_once(spark_root: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that PySpark asks for."""
    looked_up: list[str] = []

    def command(text: str, *more: Any, **given: Any) -> Any:
        if text.startswith(LOOK_UP):
            looked_up.append(text)
        return send(text, *more, **given)

    client = spark_root.sparkContext._gateway._gateway_client
    send = client.send_command
    monkeypatch.setattr(client, "send_command", command)
    for _ in range(2):
        looked_up.clear()
        session = spark_root.newSession()
        assert session.createDataFrame(pa.table({"x": [1, 2]})).selectExpr("sum(x) as s").toArrow()["s"][0].as_py() == 3
        assert session._jvm.java.lang.System.getProperty("java.version")
    assert not looked_up

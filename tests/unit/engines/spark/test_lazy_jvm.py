"""A JVM that starts with the first request: how a failed start is told, and when the next is tried. No Java."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engines.contract import EngineIdentity, SessionRequest
from engines.errors import SESSION, EngineLost
from engines.spark.handler import SparkHandler
from engines.spark.runtime import jvm as module
from engines.spark.runtime.jvm import Jvm
from engines.spark.runtime.session import SessionOptions

IDENTITY = EngineIdentity(name="spark", version="0", digest="sha256:0", sandbox="none", platform="test")


class Starts:
    """Stands for Spark: fails as often as it is told."""

    def __init__(self, fails: int) -> None:
        self.fails, self.tried, self.time = fails, 0, 100.0

    def __call__(self, _: SessionOptions) -> Any:
        self.tried += 1
        if self.tried <= self.fails:
            raise EngineLost("Spark did not start", rule="spark-start", hint="is there memory for the heap?")
        process = SimpleNamespace(poll=lambda: None)
        return SimpleNamespace(sparkContext=SimpleNamespace(_gateway=SimpleNamespace(proc=process)))


def bed(monkeypatch: pytest.MonkeyPatch, fails: int) -> tuple[Jvm, Starts, list[str]]:
    starts, told = Starts(fails), list[str]()
    monkeypatch.setattr(module, "start_session", starts)
    return Jvm(SessionOptions(scratch=Path("/nowhere")), told.append, lambda: starts.time), starts, told


def test_nothing_starts_before_it_is_needed_and_then_once(monkeypatch: pytest.MonkeyPatch) -> None:
    java, starts, told = bed(monkeypatch, 0)
    handler = SparkHandler(java, lambda: IDENTITY)
    assert (handler.session(SessionRequest()).state, starts.tried) == ("stopped", 0)
    assert handler.session(SessionRequest(starts=True)).state == "ready"
    assert java.session() is java.session()
    assert (starts.tried, told) == (1, ["starting", "ready"])


def test_a_failure_is_told_to_all_for_a_growing_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    java, starts, told = bed(monkeypatch, 2)
    handler = SparkHandler(java, lambda: IDENTITY)
    for tried in (1, 2):
        with pytest.raises(EngineLost, match="did not start") as first:
            java.session()
        assert (first.value.rule, first.value.hint) == (SESSION, "is there memory for the heap?")
        with pytest.raises(EngineLost, match="did not start") as second:
            java.session()
        assert (starts.tried, second.value.hint) == (tried, f"next attempt in {tried} s")
        assert handler.session(SessionRequest(starts=True)).message == "Spark did not start"
        starts.time += tried
    java.session()
    assert told == ["starting", "failed"] * 2 + ["starting", "ready"]

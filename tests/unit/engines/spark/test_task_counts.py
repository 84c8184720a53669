"""A sample that takes long keeps nobody waiting."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from py4j.protocol import Py4JError

from engines.contract import EngineProgress
from engines.spark.runtime.task_counts import LastSample
from worlds.eventually import PATIENCE


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def taken(threads: ThreadPoolExecutor) -> None:
    """All samples that were begun."""
    threads.submit(lambda: None).result(PATIENCE)


def test_the_newest_sample_is_told_and_one_that_takes_long_is_not_waited_for(threads: ThreadPoolExecutor) -> None:
    go_on, numbers = threading.Event(), iter(range(1, 9))

    def take() -> EngineProgress:
        assert go_on.wait(PATIENCE)
        return EngineProgress(tasks_done=next(numbers))

    sample = LastSample(take, threads)
    assert [sample() for _ in range(3)] == [EngineProgress()] * 3
    go_on.set()
    taken(threads)
    assert sample() == EngineProgress(tasks_done=1)
    taken(threads)
    assert sample() == EngineProgress(tasks_done=2)


def test_a_jvm_that_is_gone_leaves_the_last_sample_and_another_fault_is_none_of_its(
    threads: ThreadPoolExecutor,
) -> None:
    outcomes: Iterator[Any] = iter([EngineProgress(tasks_done=1), Py4JError("gone"), ConnectionError(), KeyError("x")])

    def take() -> EngineProgress:
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    sample = LastSample(take, threads)
    for expected in (EngineProgress(), *[EngineProgress(tasks_done=1)] * 3):
        assert sample() == expected
        taken(threads)
    with pytest.raises(KeyError):
        sample()


def test_a_process_that_ends_begins_no_sample() -> None:
    threads = ThreadPoolExecutor(1)
    threads.shutdown()
    sample = LastSample(EngineProgress, threads)
    assert sample() == sample() == EngineProgress()

"""Processes share the tests, and a run goes on after a test that ended its process."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parents[1]


class Process:
    """A worker of xdist, and what it is given to do."""

    def __init__(self) -> None:
        self.shutting_down = False
        self.given: list[list[int]] = []

    def send_runtest_some(self, tests: list[int]) -> None:
        self.given.append(tests)


def scheduling(config: pytest.Config, collected: dict[Process, list[str]]) -> Any:
    rules = config.pluginmanager.getplugin(str(TESTS / "conftest.py"))
    scheduler = object.__new__(rules.Units)
    scheduler.log, scheduler.workqueue, scheduler._kinds = (
        lambda *_: None,
        OrderedDict(),
        rules.kinds_for(len(collected)),
    )
    scheduler.registered_collections, scheduler.assigned_work = collected, {process: {} for process in collected}
    return scheduler


def test_one_process_has_a_jvm_until_nothing_else_is_left(pytestconfig: pytest.Config) -> None:
    names = ["engine/a::1", "engine/b::1", "unit/a::1", "unit/b::1", "engine/c::1", "engine/d::1"]
    first, second, third = processes = [Process() for _ in range(3)]
    scheduler = scheduling(pytestconfig, dict.fromkeys(processes, names))
    scheduler.workqueue.update({name.partition("::")[0]: {name: False} for name in names})
    for process in (first, second, third, first, third, second):
        scheduler._assign_work_unit(process)
    given = [[names[number] for tests in process.given for number in tests] for process in processes]
    assert given == [["engine/a::1", "engine/b::1"], ["unit/a::1", "engine/d::1"], ["unit/b::1", "engine/c::1"]]


def test_half_of_the_processes_run_what_waits_until_nothing_else_is_left(pytestconfig: pytest.Config) -> None:
    """Of a process that has ended, another takes the place."""
    names = [f"{name}::1" for name in ("cli/a", "e2e/a", "contract/a", "contract/b", "sim/a", "node/a", "unit/a")]
    first, second, third, fourth = processes = [Process() for _ in range(4)]
    scheduler = scheduling(pytestconfig, dict.fromkeys(processes, names))
    scheduler.workqueue.update({name.partition("::")[0]: {name: False} for name in names})
    for process in (first, second, third, fourth, second):
        scheduler._assign_work_unit(process)
    del scheduler.assigned_work[first]
    for process in (fourth, third):
        scheduler._assign_work_unit(process)
    given = [[names[number] for tests in process.given for number in tests] for process in processes]
    assert given == [
        ["cli/a::1"],
        ["e2e/a::1", "contract/a::1"],
        ["sim/a::1", "unit/a::1"],
        ["node/a::1", "contract/b::1"],
    ]


def test_after_a_process_that_ended_the_others_get_what_is_left(pytestconfig: pytest.Config) -> None:
    """Neither the test that ended it nor what it had done: a process that is given nothing to do waits for ever."""
    names, ended, other = ["a::1", "b::1", "b::2", "c::1", "d::1"], Process(), Process()
    scheduler = scheduling(pytestconfig, {other: names})
    scheduler.assigned_work = {
        ended: {"a": {"a::1": True}, "b": {"b::1": False, "b::2": False}, "c": {"c::1": False}},
        other: {"d": {"d::1": True}},
    }
    assert scheduler.remove_node(ended) == "b::1"
    assert other.given == [[names.index("b::2")]]
    assert scheduler.workqueue == {"c": {"c::1": False}}


def test_a_unit_that_is_done_is_not_counted_again(pytestconfig: pytest.Config) -> None:
    names, process = ["a::1", "a::2", "b::1", "b::2", "c::1", "c::2", "d::1"], Process()
    scheduler = scheduling(pytestconfig, {process: names})
    scheduler.assigned_work = {process: {"a": {"a::1": False, "a::2": False}, "b": {"b::1": False, "b::2": False}}}
    scheduler.workqueue.update({"c": {"c::1": False, "c::2": False}, "d": {"d::1": False}})
    for done in (0, 2, 1):
        scheduler.mark_test_complete(process, done)
    assert scheduler.assigned_work[process] == {
        "b": {"b::1": True, "b::2": False},
        "c": {"c::1": False, "c::2": False},
    }
    assert process.given == [[names.index("c::1"), names.index("c::2")]]


def test_a_short_report_tells_what_failed_and_what_was_called(pytestconfig: pytest.Config) -> None:
    told: list[Any] = []

    class Worker:
        def pytest_runtest_logreport(self, report: Any) -> None:
            told.append(report)

    said = [(when, outcome) for when in ("setup", "call", "teardown") for outcome in ("passed", "failed", "skipped")]
    reports = {each: pytest.TestReport("a::1", ("a", 1, "1"), {}, each[1], None, each[0]) for each in said}  # type: ignore[arg-type]
    worker = pytestconfig.pluginmanager.getplugin(str(TESTS / "conftest.py")).brief(Worker)()
    for report in reports.values():
        worker.pytest_runtest_logreport(report)
    assert told == [
        report for each, report in reports.items() if each not in {("setup", "passed"), ("teardown", "passed")}
    ]

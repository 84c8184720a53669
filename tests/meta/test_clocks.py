"""No test is decided by a real clock: a bound in seconds is the last net, or passes in virtual time."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

TESTS: Final = Path(__file__).parents[1]
NETS: Final = {"PATIENCE", "ENGINE_START"}
"""What a bound in real time may be made of."""
VIRTUAL: Final = ("autojump_clock", "mock_clock", "MockClock")
"""What a module, or the conftest beside it, has whose time is virtual."""
SCOPES: Final = {"fail_after", "fail_at", "move_on_after", "move_on_at"}
BLOCKING: Final = {"wait", "join", "settimeout", "acquire", "result", "communicate"}
CLOCKS: Final = {"monotonic", "perf_counter", "sleep"}
"""Of ``time``."""
EXCEPT: Final = {
    "Terminal": "a key that is pressed again and again",
    "Town": "a siege lasts as long as it is told",
    "besieged": "a siege lasts as long as it is told",
    "main": "tells how long it took",
    "test_a_caller_that_leaves_stops_the_work": "a caller who leaves",
    "test_a_node_has_its_memory_and_its_engines_theirs": "the last net around a whole machine",
    "test_a_server_that_drips_is_left": "drips",
    "test_a_slow_answer_is_left": "drips",
    "test_an_hour_of_bad_weather_leaves_memory_and_descriptors_flat": "how long a soak lasts",
    "test_apart_who_stops_waiting_for_a_place_takes_none": "gives up in vain, whenever",
    "test_every_row_with_spark_can_be_measured": "the last net around a whole bench",
    "test_peers": "a stranger who waits for no answer",
    "test_the_publisher_on_a_slow_line_gives_two_copies_at_most": "tells how long it took",
    "test_who_leaves_at_any_moment_leaves_nothing_open": "leaves at a moment, whichever",
    "scripted_engine": "an engine that takes as long as it is told",
    "besieger": "a siege lasts as long as it is told",
    "siege_attacks": "a siege lasts as long as it is told",
    "siege_doors": "a siege lasts as long as it is told",
    "siege_host": "a siege lasts as long as it is told",
    "eventually": "the last net",
    "foreign": "then it is killed",
    "ftp": "how often a server looks whether it is over",
    "lan": "lines that are slow on purpose",
    "sse": "how often a server says that it is still there",
}
"""Modules of helpers, and names in modules of tests, in which seconds pass that decide nothing, and what they are."""


def bounds(tree: ast.AST) -> Iterator[str]:
    """Yields where real time is looked at."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        of = getattr(node.func.value, "id", "") if isinstance(node.func, ast.Attribute) else ""
        given = [each.value for each in node.keywords if each.arg == "timeout"]
        if name in SCOPES or (name in BLOCKING and len(node.args) == 1 and of != "path"):
            given += node.args[:1]
        is_clock = of == "time" and name in CLOCKS
        if is_clock or any(is_bound(each, name in SCOPES) for each in given):
            yield f"{node.lineno}: {ast.unparse(node)[:80]}"


def is_bound(given: ast.expr, is_scope: bool) -> bool:
    """Whether it is some seconds, and not the last net; what a scope is given are always seconds."""
    if {each.id for each in ast.walk(given) if isinstance(each, ast.Name)} & NETS:
        return False
    if isinstance(given, ast.Constant):
        return isinstance(given.value, int | float) and not isinstance(given.value, bool) and given.value > 0
    return is_scope


def is_virtual(path: Path, source: str) -> bool:
    beside = path.with_name("conftest.py")
    told = source + (beside.read_text() if beside.is_file() else "")
    return any(each in told for each in VIRTUAL)


def found() -> dict[str, list[str]]:
    """Returns where real time is looked at, by modules of helpers and by names in modules of tests."""
    told: dict[str, list[str]] = {}
    for path in sorted(TESTS.rglob("*.py")):
        source = path.read_text()
        if not is_virtual(path, source):
            for each in ast.parse(source).body:
                name = getattr(each, "name", "") if path.name.startswith("test_") else path.stem
                for where in bounds(each):
                    told.setdefault(name, []).append(f"{path.relative_to(TESTS)}:{where}")
    return told


def test_seconds_decide_nothing() -> None:
    told = found()
    assert {name: lines for name, lines in told.items() if name not in EXCEPT} == {}
    assert told.keys() >= EXCEPT.keys(), "an exception that nothing needs"


@pytest.mark.parametrize(
    ("line", "is_refused"),
    [
        ("trio.fail_after(5)", True),
        ("trio.move_on_after(SECONDS)", True),
        ("trio.fail_after(2 * PATIENCE)", False),
        ("subprocess.run(['a'], timeout=60)", True),
        ("subprocess.run(['a'], timeout=PATIENCE)", False),
        ("thread.join(10)", True),
        ("thread.join()", False),
        ("','.join(names)", False),
        ("event.wait(1.0)", True),
        ("time.sleep(1)", True),
        ("time.monotonic()", True),
    ],
)
def test_the_law_sees(line: str, is_refused: bool) -> None:
    assert bool(list(bounds(ast.parse(line)))) == is_refused

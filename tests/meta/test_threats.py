"""THREATS.md and the tests say the same: every attack is mounted by a test that exists, or the page says "not yet"."""

from __future__ import annotations

import re
from pathlib import Path

TREE = Path(__file__).parents[2]
PAGE = TREE / "THREATS.md"
ROW = re.compile(r"^\| (?!attack \||---)(?P<attack>[^|]+) \| (?P<stop>[^|]+) \|(?P<test>[^|]*)\|$", re.MULTILINE)
FUNCTION = re.compile(r"^ *(?:async )?def (\w+)\(", re.MULTILINE)
MOUNTED = TREE / "tests" / "unit" / "odfd" / "trust" / "test_threats.py"
BESIDES = {
    "test_values_of_answers_are_compared_whole",
    "test_a_head_far_from_ours_is_no_answer",
}
"""Tests beside the threats, for parts that they stand on."""


def rows() -> list[tuple[str, str, str]]:
    return [(row["attack"], row["stop"], row["test"].strip().strip("`")) for row in ROW.finditer(PAGE.read_text())]


def functions(path: Path) -> set[str]:
    return set(FUNCTION.findall(path.read_text()))


def test_every_row_is_tested_or_says_not_yet() -> None:
    found = rows()
    assert len(found) >= 30
    for attack, stop, test in found:
        assert bool(test) != ("**not yet**: " in stop), attack


def test_the_tests_named_exist_once() -> None:
    named = [test for *_, test in rows() if test]
    assert len(named) == len(set(named))
    existing = set().union(*(functions(path) for path in (TREE / "tests").rglob("test_*.py")))
    assert not set(named) - existing


def test_every_attack_that_is_mounted_is_on_the_page() -> None:
    mounted = {name for name in functions(MOUNTED) if name.startswith("test_")}
    assert mounted - BESIDES <= {test for *_, test in rows()}
    assert mounted >= BESIDES

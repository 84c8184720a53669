"""THREATS.md, the page of attacks and the docstrings of tests say the same; see ``package/attacks.py``."""

from __future__ import annotations

import ast
import re
from collections import Counter

import pytest

from package.attacks import THREATS, TREE, Attack, attacks, read, threats

MOUNTED = TREE / "tests" / "unit" / "odfd" / "trust" / "test_threats.py"
BESIDES = {
    "test_values_of_answers_are_compared_whole",
    "test_a_head_far_from_ours_is_no_answer",
}
"""Tests beside the threats, for parts that they stand on."""
NAMED = re.compile(r"`(test_\w+)`")
VAGUE = re.compile(r"^the same\b|\b(?:likewise|this page|see (?:above|below))\b", re.IGNORECASE)
"""Words of a row that is understood only beside another row."""
MOST = 60
FEWEST = 650


def test_each_threat_has_tests_and_each_attack_a_threat() -> None:
    ids = Counter(each.id for each in threats())
    assert set(ids.values()) == {1}
    assert set(ids) == {each.threat for each in attacks()}
    assert len(ids) <= MOST
    for each in threats():
        assert each.link == f"docs/reference/attacks.md#{each.id.lower()}"


def test_no_attack_is_lost_or_named_twice() -> None:
    assert len(attacks()) >= FEWEST, "the test no longer finds what it is about"
    assert [text for text, count in Counter(each.attack for each in attacks()).items() if count > 1] == []


def test_a_row_is_understood_by_itself() -> None:
    assert [each for each in attacks() if VAGUE.search(each.attack) or VAGUE.search(each.defence)] == []
    assert [each for each in attacks() if "|" in each.attack + each.defence] == []


def test_every_id_that_is_cited_is_a_threat() -> None:
    cited = set(re.findall(r"T-[A-Z]+-\d\d", THREATS.read_text(encoding="utf-8")))
    assert cited == {each.id for each in threats()}


def test_guarantees_name_attacks_that_tests_mount() -> None:
    guarantees = NAMED.findall(THREATS.read_text(encoding="utf-8"))
    assert len(guarantees) == len(set(guarantees)) >= 12
    assert set(guarantees) <= {each.test for each in attacks()}


def test_every_test_of_the_threats_to_trust_mounts_one() -> None:
    functions = [each for each in ast.walk(ast.parse(MOUNTED.read_text())) if isinstance(each, ast.FunctionDef)]
    tests = {each.name: ast.get_docstring(each) or "" for each in functions if each.name.startswith("test_")}
    assert {name for name, text in tests.items() if read(text, name) is None} == BESIDES


def test_a_docstring_is_read() -> None:
    assert read("Attack T-HEAD-01: forged\nhead.\n\nDefence: a key.\n\nMore.", "test_x") == Attack(
        "T-HEAD-01", "forged head", "a key", "test_x"
    )
    assert read("A head.", "test_x") is None
    with pytest.raises(ValueError, match="no second paragraph"):
        read("Attack T-HEAD-01: forged head.", "test_x")

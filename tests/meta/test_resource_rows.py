"""Rows of RFC-018 and properties of resources: each has a test by its number, or is listed as not done."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
NAMED = re.compile(r"def test_([rp])(\d\d)_\w+")
ROWS = {("r", number) for number in range(1, 66)} | {("p", number) for number in range(1, 13)}
DONE = {
    "r": {1, 2, 3, 4, 5, 7, 11, 12, 13, 14, 15, 18, 19, 32, 33, 37, 38, 39, 40, 41, 42, 43, 44, 48, 50, 52, 53, 61},
    "p": {1, 2, 3, 4, 7, 9, 10},
}
"""What a test stands for. R16 is an open question of the RFC, R65 is what is not done on purpose."""


def test_each_row_that_is_done_has_a_test_and_no_other() -> None:
    found = {
        (letter, int(number))
        for path in TESTS.rglob("test_*.py")
        if path != Path(__file__)
        for letter, number in NAMED.findall(path.read_text())
    }
    assert found <= ROWS
    assert {letter: {number for each, number in found if each == letter} for letter in DONE} == DONE

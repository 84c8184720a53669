"""What is to start first is there."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).parents[1]


def is_there(name: str) -> bool:
    """A file, or a test of it."""
    file, _, test = name.partition("::")
    path = TESTS / file
    return path.is_file() and (not test or f"def {test}(" in path.read_text())


def test_every_long_file_or_test_is_there_once() -> None:
    names = (TESTS / "longest.txt").read_text().split()
    assert len(set(names)) == len(names)
    assert not [name for name in names if not is_there(name)], "take away or rename them in longest.txt"


def test_one_that_is_not_there_is_noticed() -> None:
    assert is_there("meta/test_order.py::test_one_that_is_not_there_is_noticed")
    assert not is_there("meta/test_order.py::test_nothing")
    assert not is_there("meta/test_nothing.py")

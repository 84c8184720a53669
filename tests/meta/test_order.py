"""What is to start first is there."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).parents[1]


def test_every_long_file_is_there_once() -> None:
    names = (TESTS / "longest.txt").read_text().split()
    assert len(set(names)) == len(names)
    assert not [name for name in names if not (TESTS / name).is_file()], "take away or rename them in longest.txt"

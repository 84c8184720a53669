"""Prose of pages, help and messages has no word that readers stumble over, and no long sentence."""

from __future__ import annotations

import pytest

from worlds.prose import MOST, check_page, problems


def test_prose_passes_but_for_the_exceptions_and_each_exception_is_one() -> None:
    assert not list(problems()), "make lint"


@pytest.mark.parametrize(
    "text",
    [
        "Nobody reads it.", "Write it anew.", "It is told by an event.", "* the flow goes on", "a person accepts it",
        "See issue 7.", "Measured at a load of 17.", "word " * (MOST + 1),
    ],
)  # fmt: skip
def test_what_readers_stumble_over_is_found(text: str) -> None:
    assert list(check_page(text))


@pytest.mark.parametrize(
    "text",
    [
        "% stands for any text.", "`told` is a name.", "| " + "cell " * 40 + "|", "```\nanew\n```\n",
        "word " * (MOST - 1) + "end. " + "Word " * (MOST - 1), "- one " * 2 + "\n- " + "two " * 20, "[x](anew.md)",
    ],
)  # fmt: skip
def test_what_reads_well_passes(text: str) -> None:
    assert not list(check_page(text))

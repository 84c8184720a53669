"""Counted nouns, and the words that agree with them."""

from __future__ import annotations

import pytest

from chain.wording import a, agree, plural


@pytest.mark.parametrize(("number", "said"), [(0, "0 blocks"), (1, "1 block"), (2, "2 blocks"), (1500, "1,500 blocks")])
def test_a_counted_noun(number: int, said: str) -> None:
    assert plural(number, "block") == said


def test_a_verb_agrees_with_what_does_it() -> None:
    assert [agree(number, "derives", "derive") for number in (0, 1, 2)] == ["derive", "derives", "derive"]


def test_a_noun_has_its_article() -> None:
    assert list(map(a, ("Int64", "array", "UInt8", "Bool"))) == ["an Int64", "an array", "a UInt8", "a Bool"]

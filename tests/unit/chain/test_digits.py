"""Whole numbers in texts of others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.digits import read_whole


@given(st.integers(0, 2**63 - 1), st.integers(0, 6000))
def test_what_is_written_is_read_with_any_number_of_zeros(number: int, zeros: int) -> None:
    assert read_whole("0" * zeros + str(number)) == number


@pytest.mark.parametrize("text", ["", "x", "-1", "+1", " 1", "1_0", "٣", str(2**63), "9" * 5000])
def test_another_text_is_no_number(text: str) -> None:
    """One of 5,000 digits too, which ``int`` refuses by ValueError."""
    assert read_whole(text) is None

"""Names that readers take for one another fold into one; other names do not."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odfd.network.card_index import likeness


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("paypal", "\u0440\u0430\u0443\u0440\u0430l"),  # Cyrillic
        ("paypal", "paypaI"),
        ("PAYPAL", "paypal"),
        ("OPEN", "0pen"),
        ("nyc.flights", "nyc-f1ights"),
        ("model", "rnodel"),
        ("cafe", "café"),
        ("data", "\uff44\uff41\uff54\uff41"),  # fullwidth
        ("data", "\U0001d41d\U0001d41a\U0001d42d\U0001d41a"),  # mathematical bold
    ],
)
def test_confusable_names_are_one(one: str, other: str) -> None:
    assert likeness(one) == likeness(other)


@pytest.mark.parametrize(("one", "other"), [("sales-2023", "sales-2024"), ("dust", "dusk"), ("weather", "whether")])
def test_names_that_differ_stay_apart(one: str, other: str) -> None:
    assert likeness(one) != likeness(other)


@given(st.text(max_size=40))
def test_whatever_is_written_folds_without_regard_to_case_and_form(name: str) -> None:
    folded = likeness(name)
    assert likeness(unicodedata.normalize("NFD", name)) == folded
    assert likeness(name.casefold()) == likeness(name.casefold().casefold())
    assert all(each.isalnum() for each in folded)

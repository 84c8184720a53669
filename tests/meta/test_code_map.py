"""Every package says in one sentence what it does: the code map is made of these (``package/code_map.py``)."""

from __future__ import annotations

from typing import Final

from package.code_map import ROOTS, packages

LONGEST: Final = 160
"""Characters of a row's text: a package that needs more does more than one thing."""


def test_every_package_says_what_it_does() -> None:
    found = {name: text for root in ROOTS for name, text in packages(root)}
    assert len(found) > 90, "the test no longer finds the packages"
    wrong = {name: text for name, text in found.items() if not 20 <= len(text) <= LONGEST or not text.endswith(".")}
    assert not wrong, f"one sentence of at most {LONGEST} characters: {wrong}"

"""Maps names that readers may confuse to one text, by the confusables of Unicode (UTS 39).

UTS 39 maps each confusable character to a prototype. Here characters are grouped instead: any two that are connected by
mappings count as equal. Names are compared without case, and a capital I looks like a small l, so i and l are equal
too. More names match than really look alike; matches are shown to a person, and nothing is refused.
"""

from __future__ import annotations

import functools
import json
import unicodedata
from collections.abc import Mapping
from importlib.resources import files
from typing import Final

_CASELESS: Final = {"i": "l"}


def likeness(name: str) -> str:
    """Folds width, case, marks, punctuation, and characters that look alike in any script."""
    plain = unicodedata.normalize("NFKD", name).casefold()
    prototypes = _prototypes()
    folded = "".join(prototypes.get(each, each) for each in plain)
    letters = unicodedata.normalize("NFKD", folded).casefold()
    return "".join(_CASELESS.get(each, each) for each in letters if each.isalnum())


@functools.cache
def _prototypes() -> Mapping[str, str]:
    """Returns one text for each group of confusable characters; the table is read on first use."""
    table = json.loads(files("confusable_homoglyphs").joinpath("confusables.json").read_bytes())
    groups = _Groups()
    for text, others in table.items():
        for each in others:
            groups.join(text, each["c"])
    return {text: groups.prototype(text) for text in table if len(text) == 1}


class _Groups:
    """Groups of equal texts (union-find). A group's prototype is of ASCII letters if possible; else the longest."""

    def __init__(self) -> None:
        self._parents: dict[str, str] = {}

    def join(self, one: str, other: str) -> None:
        first, second = sorted((self.prototype(one), self.prototype(other)), key=_rank)
        if first != second:
            self._parents[second] = first

    def prototype(self, text: str) -> str:
        while (parent := self._parents.get(text, text)) != text:
            self._parents[text] = self._parents.get(parent, parent)
            text = parent
        return text


def _rank(text: str) -> tuple[bool, bool, int, str]:
    return not text.isascii(), not text.isalpha(), -len(text), text

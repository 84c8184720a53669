"""Texts that mean another instant on another day: ``date'today'``, ``cast('now' as timestamp)``. Pure.

Spark replaces them while it parses or optimises, so a typed literal shows only in the text of a query, and a cast only
in its analysed plan, before the optimiser has seen it. Engine semantics, section 11.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from engines.spark.analysis.functions import TEXT_FUNCTIONS
from engines.spark.analysis.tree import Node

_STRING: Final = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
_COMMENT: Final = r"--[^\n]*|/\*.*?\*/"
_TOKENS: Final = re.compile(
    rf"(?is){_COMMENT}|`[^`]*`"
    rf"|\b(?:timestamp_ltz|timestamp_ntz|timestamp|date)(?:\s|{_COMMENT})*(?P<text>{_STRING})"
    rf"|{_STRING}"
)
"""From the left: what only looks like a literal inside a comment, a name or a text is passed over as a whole."""
_MOVES: Final = re.compile(r"\s*(now|today|yesterday|tomorrow)\b", re.IGNORECASE)
"""Spark takes these words in any case, and a zone after them."""
_TIMES: Final = frozenset({"date", "timestamp", "timestamp_ntz"})
_PARSERS: Final = frozenset({"ParseToDate", "ParseToTimestamp", "TryToTimestamp"})
"""Casts, unless they are given a pattern, which knows no such words."""
_PASSING_ON: Final = frozenset({"CaseWhen", "If", "Coalesce", "Nvl", "Nvl2", "NullIf", "Greatest", "Least"})
_COLUMNS: Final = frozenset({"AttributeReference", "NamedLambdaVariable", "OuterReference"})


def moving_literals(sql: str) -> Iterator[tuple[str, int, int]]:
    """(text, line, column) of each typed literal that moves, both from one.

    One with an escape in it may spell anything, and nobody needs one: it counts as moving.
    """
    for token in _TOKENS.finditer(sql):
        text = token["text"]
        if text is None or not (_MOVES.match(text[1:-1]) or "\\" in text):
            continue
        before = sql[: token.start()]
        yield text[1:-1].strip(), before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1


def moving_cast(node: Node) -> bool:
    """Whether an expression casts a constant text to a time that may move: Spark folds only constants that way.

    A column that holds 'now' is an error under ANSI when the row comes. A constant that is computed is taken to move,
    since it is not evaluated here.
    """
    by_pattern = len(node.children) != 1
    if by_pattern or not (node.kind in _PARSERS or (node.kind == "Cast" and node.fields.get("dataType") in _TIMES)):
        return False
    child = node.only
    if child.kind == "Literal":
        return child.fields.get("dataType") == "string" and bool(_MOVES.match(str(child.fields.get("value"))))
    return _is_text(child) and not any(part.kind in _COLUMNS for part in child.preorder())


def _is_text(node: Node) -> bool:
    if node.kind in ("Literal", "Cast"):
        return node.fields.get("dataType") == "string"
    if node.kind in _PASSING_ON:
        return any(_is_text(child) for child in node.children)
    return node.kind in TEXT_FUNCTIONS

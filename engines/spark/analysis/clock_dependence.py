"""Finds texts that mean another time on another day, as ``cast(k as timestamp)`` of '12:34' means today's. Pure.

Spark takes the day of the clock where a text of a timestamp has none, in casts that are written, casts that it adds by
itself, and in JSON and CSV. A pattern always has a day: 1970-01-01 where it states none. Dates and local timestamps
refuse such texts, but constants among them may be words such as 'today'.
Spec: docs/spec/engine-semantics.md#determinism.
"""

from __future__ import annotations

import json
from typing import Final

from engines.spark.analysis.functions import NOT_TEXT
from engines.spark.analysis.lexical import MOVES, says_its_day
from engines.spark.analysis.tree import Node

_DATES: Final = frozenset({"date", "timestamp_ntz"})
_STAMPS: Final = {"ParseToTimestamp": "timestamp", "TryToTimestamp": "timestamp", "ParseToDate": "date"}
"""Casts, unless they are given a pattern."""
_COLUMNS: Final = frozenset({"AttributeReference", "NamedLambdaVariable", "OuterReference"})
_DOCUMENTS: Final = frozenset({"JsonToStructs", "CsvToStructs"})


def reads_todays_time(node: Node) -> bool:
    """Whether an expression reads a text as a time that may lack its day.

    Of constants the text is looked at; one that is computed may spell anything, since it is not evaluated here.
    """
    if node.kind in _DOCUMENTS:
        return '"timestamp"' in json.dumps(node.fields.get("schema"))  # its options are not in a plan's JSON
    target = node.type_name if node.kind == "Cast" else _STAMPS.get(node.kind, "")
    if not target or len(node.children) != 1:
        return False
    child = node.only
    if child.kind == "Literal":
        text = str(child.fields.get("value"))
        moves = bool(MOVES.match(text)) or (target == "timestamp" and not says_its_day(text))
        return target in ("timestamp", *_DATES) and child.type_name == "string" and moves
    if target == "timestamp":
        return may_be_text(child)
    constant = not any(part.kind in _COLUMNS for part in child.preorder())
    return target in _DATES and constant and may_be_text(child)


def may_be_text(node: Node) -> bool:
    """Whether an expression's value could be a text, as far as a plan's JSON tells: it has types of columns alone."""
    stated = node.fields.get("dataType")
    if stated is not None and node.kind in ("AttributeReference", "Cast", "Literal", "NamedLambdaVariable"):
        return isinstance(stated, str) and stated.startswith(("string", "char", "varchar"))
    if node.kind in NOT_TEXT:
        return False
    if node.kind == "GetStructField" and isinstance(node.only.fields.get("dataType"), dict):
        ordinal, fields = node.fields.get("ordinal"), node.only.fields["dataType"].get("fields")
        if isinstance(fields, list) and isinstance(ordinal, int):
            return str(fields[ordinal].get("type")).startswith(("string", "char", "varchar"))
    if node.kind == "If":
        return any(may_be_text(child) for child in node.children[1:])
    return not node.children or any(may_be_text(child) or _holds_text(child) for child in node.children)


def _holds_text(node: Node) -> bool:
    stated = node.fields.get("dataType")
    return isinstance(stated, dict) and '"string' in json.dumps(stated)

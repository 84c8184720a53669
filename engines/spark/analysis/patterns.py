"""Checks patterns and zones of times that a query writes out; a bad one would fail with the first row. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from engines.spark.analysis.determinism import arguments
from engines.spark.analysis.tree import Node

READS: Final = frozenset({"GetTimestamp", "ParseToDate", "ParseToTimestamp", "UnixTimestamp", "ToUnixTimestamp"})
WRITES: Final = frozenset({"DateFormatClass", "FromUnixTime"})
ZONES: Final = frozenset({"FromUTCTimestamp", "ToUTCTimestamp"})
"""Conversions from and to local time: of a time, by a zone."""
ZONE_CODE: Final = "time-zone"
REPLACE_ZONE: Final = "UTC, a name like Europe/Vienna, or an offset like +01:00"
_TIMES: Final = frozenset({"date", "timestamp", "timestamp_ntz"})
"""What is read without a pattern, though one is given."""
CODE: Final = "time-pattern"
REPLACE: Final = "letters like yyyy-MM-dd HH:mm:ss, and other text in single quotes: to_timestamp(k, 'yyyy-MM-dd')"


def zones(plan: Node) -> Iterator[tuple[Node, str]]:
    """(expression, zone) for each constant zone of a conversion, anywhere in an analysed plan."""
    stack = [plan]
    while stack:
        node = stack.pop()
        if node.kind in ZONES and node.children[-1].kind == "Literal":
            name = node.children[-1].fields.get("value")
            if isinstance(name, str):
                yield node, name
        stack += [*node.children, *arguments(node)]


def patterns(plan: Node) -> Iterator[tuple[Node, str, bool]]:
    """(expression, pattern, whether it reads texts) for each constant pattern, anywhere in an analysed plan."""
    stack = [plan]
    while stack:
        node = stack.pop()
        if node.kind in READS | WRITES and len(node.children) > 1 and node.children[1].kind == "Literal":
            pattern = node.children[1].fields.get("value")
            unused = node.kind in READS and node.only.type_name in _TIMES
            if isinstance(pattern, str) and not unused:
                yield node, pattern, node.kind in READS
        stack += [*node.children, *arguments(node)]

"""Keys that rows are grouped by: what is said of those whose equal values are not the same value. Pure.

Spec: docs/spec/engine-semantics.md#determinism.
"""

from __future__ import annotations

from engines.spark.analysis.determinism import Finding
from engines.spark.analysis.tree import Node


def placed(key: Node, operator: Node) -> Node:
    """What to show: Spark knows the places of expressions, but says those of other columns for a bare one."""
    return operator if key.kind == "AttributeReference" else key


def map_key(node: Node, name: str) -> Finding:
    return Finding(
        "map-key",
        f"{name or 'a key'} is a map: which of two equal ones represents a group depends on the order of the rows",
        "array_sort(map_entries(x))",
        node,
    )


def float_key(node: Node, name: str) -> Finding:
    shown = name or "a key"
    return Finding(
        "float-key",
        f"{shown} is floating point: which of 0.0 and -0.0 represents a group depends on the order of the rows",
        "cast(x as decimal(38,12))",
        node,
    )

"""Constant patterns of times in a plan."""

from __future__ import annotations

from engines.spark.analysis.tree import build
from engines.spark.sql.time_patterns import patterns, zones


def node(kind, *children, **fields):
    return [
        {"class": f"org.{kind}", "num-children": len(children), **fields},
        *(part for one in children for part in one),
    ]


def literal(value):
    return node("Literal", value=value, dataType="string")


COLUMN = node("AttributeReference", name="k")


def test_they_are_found_in_every_operator_and_depth():
    deep = node("Alias", node("Upper", node("DateFormatClass", COLUMN, literal("yyyy"))))
    filtered = node("Filter", node("Relation"), condition=node("GetTimestamp", COLUMN, literal("HH")))
    found = list(patterns(build(node("Project", filtered, projectList=[deep]))))
    assert sorted((one.kind, pattern, reads) for one, pattern, reads in found) == [
        ("DateFormatClass", "yyyy", False), ("GetTimestamp", "HH", True),
    ]  # fmt: skip


def test_of_a_time_no_pattern_is_read():
    made = [
        node("ParseToTimestamp", node("Cast", COLUMN, dataType="timestamp"), literal("b")),
        node("ParseToDate", COLUMN),
    ]
    assert list(patterns(build(node("Project", node("Relation"), projectList=made)))) == []


def test_computed_and_missing_ones_are_not():
    made = [node("UnixTimestamp", COLUMN, COLUMN), node("FromUnixTime", COLUMN, literal(None)), literal("yyyy")]
    assert list(patterns(build(node("Project", node("Relation"), projectList=made)))) == []


def test_constant_zones_are_found():
    made = [
        node("Upper", node("FromUTCTimestamp", COLUMN, literal("Mars/Base"))),
        node("ToUTCTimestamp", COLUMN, COLUMN),
        node("ToUTCTimestamp", COLUMN, literal(None)),
    ]
    found = zones(build(node("Project", node("Relation"), projectList=made)))
    assert [(one.kind, name) for one, name in found] == [("FromUTCTimestamp", "Mars/Base")]

"""Lineage as a tree for people."""

from __future__ import annotations

from typing import Any

import msgspec

from odfd.cli.lineage_text import graph_tree, record_tree
from odfd.control import wire

JOIN = wire.LineageStep(operator="left outer join", detail="x = y", query=1, line=2, column=3)
ANTI = msgspec.structs.replace(JOIN, operator="left anti join", hides=True)
PATHS = tuple(wire.LineagePath(ref=name, id=name.upper(), steps=(JOIN,)) for name in ("a", "b"))


def record(ref: str, offset: int, **more: Any) -> wire.LineageRecord:
    given = {"state": "derived", "row": {"v": None}, **more}
    return wire.LineageRecord(ref=ref, id=ref.upper(), offset=offset, **given)


def row(ref: str, offset: int, **more: Any) -> wire.LineageRow:
    return wire.LineageRow(ref=ref, id=ref.upper(), offset=offset, **{"role": "value", "path": 0, **more})


def answer(*records: wire.LineageRecord, complete: bool = True) -> wire.Lineage:
    first = records[0]
    return wire.Lineage(ref=first.ref, id=first.id, record=first.offset, records=records, complete=complete)


def test_a_tree_names_each_record_once_and_says_what_was_left_out() -> None:
    source = wire.LineageOrigin(kind="polling", address="*.csv", state_kind="odf/etag", state="a.csv")
    ingested = {"state": "ingested", "origin": source, "system_time": "2026-01-01T00:00:00Z", "sequence_number": 4}
    text = record_tree(
        answer(
            record(
                "top", 3, op=3, sequence_number=9, paths=PATHS, absent=(1,), count=5,
                rows=(row("a", 1, cause=True), row("m", 7), row("a", 2, role="change", path=None)),
            ),
            record("a", 1, **ingested),
            record("m", 7, rows=(row("a", 1, role="decides"),), count=1),
            record("a", 2, state="unknown", row=None, problem=wire.Problem(detail="it is gone", hint="fetch it")),
            complete=False,
        )
    )  # fmt: skip
    assert text.splitlines() == [
        "top 3 +C  block #9  v=-",
        "├─ left outer join x = y  [query 1, 2:3]",
        "├─ no record of b met it",
        "├─ a 1  (came with it)  block #4  v=-",
        "│  └─ ingested 2026-01-01 from *.csv  etag a.csv",
        "├─ m 7  v=-",
        "│  └─ a 1  (decides)  (told above)",
        "├─ a 2  (took back)  (its data is not here)",
        "│  └─ it is gone  (fetch it)",
        "└─ and 2 records more of 5",
        "not all of it could be followed: see the lines that say why; --limit N tells more of each",
    ]


def test_what_an_operator_hides_is_said() -> None:
    paths = (wire.LineagePath(ref="a", id="A", steps=(ANTI,)),)
    text = record_tree(answer(record("top", 3, paths=paths, rows=(row("a", 1),), count=1)))
    assert text.splitlines()[1:3] == [
        "├─ left anti join x = y  [query 1, 2:3]",
        "├─   rows that it took away, or added up before, bear on the record too, and are not named",
    ]


def test_control_characters_of_strangers_do_not_reach_the_terminal() -> None:
    evil = record("\x1b[31mred", 0, row={"v": "\x1b]0;x\x07"}, problem=wire.Problem(detail="\x1b[2J"), state="unknown")
    assert "\x1b" not in record_tree(answer(evil))


def node(ref: str, relation: str, *inputs: str, **more: Any) -> wire.LineageNode:
    held = {"kind": "derivative" if inputs else "root", "records": 3, "relation": relation, **more}
    said = tuple(wire.LineageInput(ref=each, id=each.upper(), alias=each) for each in inputs)
    return wire.LineageNode(ref=ref, id=ref.upper(), inputs=said, **held)


def test_a_graph_goes_up_to_the_roots_and_names_what_is_below() -> None:
    absent = wire.Problem(detail="gone is not held here", hint="odfctl mirror add X")
    graph = wire.LineageGraph(
        ref="c", id="C",
        nodes=(
            node("c", "self", "b", "a"), node("b", "upstream", "a", "gone"), node("a", "upstream", source="*.csv"),
            node("gone", "upstream", kind=None, problem=absent),
            node("d", "downstream", "c"),
        ),
    )  # fmt: skip
    assert graph_tree(graph).splitlines() == [
        "c  derivative  3 records",
        "├─ b  derivative  3 records",
        "│  ├─ a  root  3 records  from *.csv",
        "│  └─ gone  gone is not held here  (odfctl mirror add X)",
        "└─ a  (told above)",
        "",
        "derived from it here:",
        "  d  from c",
    ]

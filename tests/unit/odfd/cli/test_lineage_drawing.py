"""The graph of datasets for programs that draw: labels stay labels, whatever strangers call things."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odfd.cli.lineage_text import dot, mermaid, svg
from odfd.control import wire


def node(ref: str, *inputs: str, **more: Any) -> wire.LineageNode:
    read = tuple(wire.LineageInput(ref=name, id=name.upper(), alias=name[0] if name[1:] else name) for name in inputs)
    return wire.LineageNode(
        **{"ref": ref, "id": ref.upper(), "relation": "upstream", "kind": "root", "inputs": read, **more}
    )


def graph(*nodes: wire.LineageNode) -> wire.LineageGraph:
    return wire.LineageGraph(ref=nodes[0].ref, id=nodes[0].id, nodes=nodes)


THREE = graph(
    node("daily", "weather", "gone", relation="self", kind="derivative", records=1200),
    node("weather", records=3, source="readings/*.csv"),
    node("report", "daily", "x", relation="downstream", kind="derivative"),
)


def test_dot() -> None:
    assert dot(THREE).splitlines() == [
        "digraph lineage {",
        "  rankdir=LR;",
        '  node [fontname="sans-serif"];',
        '  n0 [label="daily\\n1,200 records", shape=ellipse, style=bold];',
        '  n1 [label="weather\\nreadings/*.csv\\n3 records", shape=box, style=solid];',
        '  n2 [label="report", shape=ellipse, style=solid];',
        '  n3 [label="gone", shape=box, style=dashed];',
        '  n4 [label="x", shape=box, style=dashed];',
        '  n1 -> n0 [label="w"];',
        '  n3 -> n0 [label="g"];',
        '  n0 -> n2 [label="d"];',
        "  n4 -> n2;",
        "}",
    ]


def test_mermaid() -> None:
    assert mermaid(THREE).splitlines() == [
        "flowchart LR",
        '  n0(["daily<br/>1,200 records"])',
        '  n1["weather<br/>readings/#42;.csv<br/>3 records"]',
        '  n2(["report"])',
        '  n3["gone"]',
        '  n4["x"]',
        '  n1 -->|"w"| n0',
        '  n3 -->|"g"| n0',
        '  n0 -->|"d"| n2',
        "  n4 --> n2",
        "  style n0 stroke-width:3px",
    ]


@pytest.mark.slow
@given(st.text(min_size=1, max_size=40), st.text(max_size=40))
def test_no_text_ends_its_label(name: str, source: str) -> None:
    drawn = graph(node(name, relation="self", source=source))
    (line,) = dot(drawn).splitlines()[3:-1]
    assert re.fullmatch(r'  n0 \[label="(?:[^"\\]|\\.)*", shape=box, style=bold\];', line)
    assert len(mermaid(drawn).splitlines()) == 3
    assert re.fullmatch(r'  n0\["[^"]*"\]', mermaid(drawn).splitlines()[1])


SVG = "{http://www.w3.org/2000/svg}"


def test_svg_has_inputs_at_the_left_and_all_labels() -> None:
    drawn = ET.fromstring(svg(THREE))
    places = {each.text: float(each.attrib["x"]) for each in drawn.iter(f"{SVG}text")}
    assert places["weather"] < places["daily"] < places["report"]
    assert {"gone", "x", "readings/*.csv", "1,200 records", "w", "g", "d"} <= places.keys()
    assert len(drawn.findall(f"{SVG}path")) == 4


@pytest.mark.slow
@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20))
def test_names_of_strangers_are_no_markup(name: str) -> None:
    drawn = ET.fromstring(svg(graph(node("a", "b", source=name), node("b", "a", source=f"<script>{name}"))))
    assert {each.tag.removeprefix(SVG) for each in drawn.iter()} == {
        "svg", "defs", "marker", "path", "rect", "text",
    }  # fmt: skip

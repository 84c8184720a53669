"""Lineage as a tree for people, as a graph for programs that draw, and as OpenLineage events."""

from __future__ import annotations

import argparse
import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
from openlineage.client.facet_v2 import (
    dataset_version_dataset,
    job_type_job,
    output_statistics_output_dataset,
    sql_job,
    symlinks_dataset,
)
from openlineage.client.serde import Serde

from chain.codec.blocks import decode_block
from chain.codec.manifest import block_to_builtins
from chain.errors import Invalid
from chain.model.block import Block
from chain.store.layout import DirectoryChain
from odfd.cli import main
from odfd.cli.lineage_text import dot, graph_tree, mermaid, record_tree, svg
from odfd.cli.standards.openlineage import PRODUCER, TransactionRuns
from odfd.control import wire

# The graph of datasets for programs that draw: labels stay labels, whatever strangers call things.


def drawn_node(ref: str, *inputs: str, **more: Any) -> wire.LineageNode:
    read = tuple(wire.LineageInput(ref=name, id=name.upper(), alias=name[0] if name[1:] else name) for name in inputs)
    return wire.LineageNode(
        **{"ref": ref, "id": ref.upper(), "relation": "upstream", "kind": "root", "inputs": read, **more}
    )


def graph(*nodes: wire.LineageNode) -> wire.LineageGraph:
    return wire.LineageGraph(ref=nodes[0].ref, id=nodes[0].id, nodes=nodes)


THREE = graph(
    drawn_node("daily", "weather", "gone", relation="self", kind="derivative", records=1200),
    drawn_node("weather", records=3, source="readings/*.csv"),
    drawn_node("report", "daily", "x", relation="downstream", kind="derivative"),
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
    drawn = graph(drawn_node(name, relation="self", source=source))
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
    drawn = ET.fromstring(svg(graph(drawn_node("a", "b", source=name), drawn_node("b", "a", source=f"<script>{name}"))))
    assert {each.tag.removeprefix(SVG) for each in drawn.iter()} == {
        "svg", "defs", "marker", "path", "rect", "text",
    }  # fmt: skip


# Lineage as a tree for people.

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
        "│  └─ a 1  (decides)  (shown above)",
        "├─ a 2  (took back)  (its data is not here)",
        "│  └─ it is gone  (fetch it)",
        "└─ and 2 records more of 5",
        "not all of it could be followed: see the lines that say why; --limit N shows more of each",
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


def told_node(ref: str, relation: str, *inputs: str, **more: Any) -> wire.LineageNode:
    held = {"kind": "derivative" if inputs else "root", "records": 3, "relation": relation, **more}
    said = tuple(wire.LineageInput(ref=each, id=each.upper(), alias=each) for each in inputs)
    return wire.LineageNode(ref=ref, id=ref.upper(), inputs=said, **held)


def test_a_graph_goes_up_to_the_roots_and_names_what_is_below() -> None:
    absent = wire.Problem(detail="gone is not held here", hint="odfctl mirror add X")
    graph = wire.LineageGraph(
        ref="c",
        id="C",
        nodes=(
            told_node("c", "self", "b", "a"),
            told_node("b", "upstream", "a", "gone"),
            told_node("a", "upstream", source="*.csv"),
            told_node("gone", "upstream", kind=None, problem=absent),
            told_node("d", "downstream", "c"),
        ),
    )
    assert graph_tree(graph).splitlines() == [
        "c  derivative  3 records",
        "├─ b  derivative  3 records",
        "│  ├─ a  root  3 records  from *.csv",
        "│  └─ gone  gone is not held here  (odfctl mirror add X)",
        "└─ a  (shown above)",
        "",
        "derived from it here:",
        "  d  from c",
    ]


# Transactions as OpenLineage events: equal to what OpenLineage's own classes make of the same facts.

GOLDEN = Path(__file__).parents[3] / "golden" / "kamu"


def blocks_of(name: str) -> list[Block]:
    return [decode_block(raw) for raw in _raws(GOLDEN / name)]


def _raws(folder: Path) -> list[bytes]:
    chain = DirectoryChain(folder)
    head = chain.head()
    assert head is not None
    return [chain.block_at(number).raw for number in range(head.size)]


class Node:
    """Answers about a derived dataset that kamu made."""

    def __init__(self, name: str, kind: Literal["root", "derivative"] = "derivative") -> None:
        self.name, self.kind = name, kind
        self.blocks = blocks_of(name)
        self.id = str(self.blocks[0].event.dataset_id)  # type: ignore[union-attr]
        self.asked: list[str] = []

    def do(self, call: Any) -> Any:
        self.asked.append(call.path)
        _, context, _, _, name, *rest = call.path.split("/")
        assert (context, name) == ("dataset", self.name)
        return argparse.Namespace(value=self._answer(rest, call.query))

    def _answer(self, rest: list[str], query: Any) -> Any:
        if rest == ["detail"]:
            rely_on = wire.Reliance(blocks=len(self.blocks) - 1, fact="attested 2/3")
            view = wire.DatasetView(
                name=self.name,
                id=self.id,
                kind=self.kind,
                blocks=len(self.blocks),
                rely_on=rely_on,
            )
            return wire.DatasetDetail(dataset=view)
        if rest == ["lineage"]:
            nodes = (
                wire.LineageNode(ref=self.name, id=self.id, relation="self"),
                wire.LineageNode(ref="flights", id=self._input(), relation="upstream"),
            )
            return wire.LineageGraph(ref=self.name, id=self.id, nodes=nodes)
        if rest == ["blocks"]:
            below = int(query.get("before", len(self.blocks)))
            found = [each for each in reversed(self.blocks[:below]) if type(each.event).__name__ in query["kind"]]
            return [
                wire.BlockView(
                    sequence_number=each.sequence_number,
                    hash=str(each.hash),
                    system_time="",
                    event=type(each.event).__name__,
                )
                for each in found[: query["limit"]]
            ]
        (block,) = [each for each in self.blocks if str(each.hash) == rest[1]]
        return wire.BlockDetail(
            hash=str(block.hash), manifest_version=2, size=len(block.raw),
            manifest=json.loads(json.dumps(block_to_builtins(block))),
        )  # fmt: skip

    def _input(self) -> str:
        (first, *_) = [each for each in self.blocks if type(each.event).__name__ == "ExecuteTransform"]
        return str(first.event.query_inputs[0].dataset_id)  # type: ignore[union-attr]


def told(node: Any, limit: int = 20) -> tuple[list[dict[str, Any]], TransactionRuns]:
    runs = TransactionRuns(node, node.name, limit)
    return list(runs.events()), runs


def symlink(name: str) -> symlinks_dataset.SymlinksDatasetFacet:
    link = symlinks_dataset.Identifier(namespace="odfd", name=name, type="TABLE")
    return symlinks_dataset.SymlinksDatasetFacet(identifiers=[link], producer=PRODUCER)


def without_ours(value: Any) -> Any:
    """An event without the facets that only we know."""
    if isinstance(value, dict):
        return {name: without_ours(each) for name, each in value.items() if not name.startswith("odf_")}
    return [without_ours(each) for each in value] if isinstance(value, list) else value


def theirs(node: Node, block: Block, run: str) -> dict[str, Any]:
    """COMPLETE of a block's run, made by OpenLineage's client."""
    event: Any = block.event
    set_transform: Any = next(each.event for each in node.blocks if type(each.event).__name__ == "SetTransform")
    sql, read, data = set_transform.transform, event.query_inputs[0], event.new_data
    version = dataset_version_dataset.DatasetVersionDatasetFacet
    interval = data.offset_interval
    made = RunEvent(
        eventType=RunState.COMPLETE,
        eventTime=block_to_builtins(block)["systemTime"],
        producer=PRODUCER,
        run=Run(runId=run),
        job=Job("odf", node.id, facets={
            "sql": sql_job.SQLJobFacet(
                query=sql.queries[0].query, dialect=sql.engine, producer=PRODUCER
            ),
            "jobType": job_type_job.JobTypeJobFacet("BATCH", "ODF", "TRANSFORM", producer=PRODUCER),
        }),
        inputs=[InputDataset("odf", str(read.dataset_id), facets={
            "version": version(str(read.new_block_hash or read.prev_block_hash), producer=PRODUCER),
            "symlinks": symlink("flights"),
        })],
        outputs=[OutputDataset("odf", node.id, facets={
            "version": version(str(block.hash), producer=PRODUCER), "symlinks": symlink(node.name),
        }, outputFacets={
            "outputStatistics": output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
                rowCount=interval.end - interval.start + 1, size=data.size, fileCount=1, producer=PRODUCER
            ),
        })],
    )  # fmt: skip
    return Serde.to_dict(made)


def test_events_are_those_that_openlineage_itself_would_make() -> None:
    node = Node("flights.long")
    events, _ = told(node)
    blocks = [each for each in node.blocks if type(each.event).__name__ == "ExecuteTransform"]
    assert len(events) == 2 * len(blocks) > 2
    compared = 0
    for block, (start, complete) in zip(blocks, zip(events[::2], events[1::2], strict=True), strict=True):
        assert (start["eventType"], complete["eventType"]) == ("START", "COMPLETE")
        assert start["run"]["runId"] == complete["run"]["runId"]
        assert start["eventTime"] == complete["eventTime"]
        if block.event.new_data is None:  # type: ignore[union-attr]
            continue
        compared += 1
        ours = without_ours(complete)
        expected = theirs(node, block, complete["run"]["runId"])
        assert Serde.remove_nulls_and_enums(ours) == Serde.remove_nulls_and_enums(expected)
    assert compared


def test_our_facets_have_what_the_block_says() -> None:
    node = Node("flights.long")
    events, _ = told(node)
    complete = [each for each in events if each["eventType"] == "COMPLETE"]
    last = node.blocks[-1]
    transactions = [each["run"]["facets"]["odf_transaction"] for each in complete]
    assert transactions[-1]["sequenceNumber"] == last.sequence_number
    assert (transactions[-1]["block"], transactions[-1]["prevBlock"]) == (str(last.hash), str(last.prev_block_hash))
    assert [each["isReliedOn"] for each in transactions] == [True] * (len(transactions) - 1) + [False]
    slices = [each["outputs"][0]["outputFacets"].get("odf_slice") for each in complete]
    hashes = [str(data.physical_hash) for each in node.blocks if (data := getattr(each.event, "new_data", None))]
    assert [each["physicalHash"] for each in slices if each] == hashes
    for facet in [*transactions, *filter(None, slices)]:
        assert facet["_producer"] == PRODUCER
        assert facet["_schemaURL"].startswith("https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/")


def test_a_run_has_the_same_id_each_time_and_each_another() -> None:
    first, _ = told(Node("flights.long"))
    again, _ = told(Node("flights.long"))
    assert first == again
    ids = [each["run"]["runId"] for each in first]
    assert len(set(ids)) == len(ids) // 2


def test_all_inputs_and_queries_are_there() -> None:
    events, _ = told(Node("events.both"))
    complete = events[1]
    assert len(complete["inputs"]) == 2
    assert len(complete["job"]["facets"]["sql"]["query"].split(";\n")) == 2


def test_the_newest_are_told_and_that_there_are_others() -> None:
    every, whole = told(Node("flights.long"))
    some, part = told(Node("flights.long"), 1)
    assert some == every[-2:]
    assert (part.left_out, whole.left_out) == (True, False)


def test_a_transform_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("odfd.cli.standards.openlineage._PAGE", 1)
    node = Node("flights.long")
    events, _ = told(node)
    assert events == told(Node("flights.long"))[0]
    details = [path for path in node.asked if "/blocks/" in path]
    assert len(details) == len(set(details)) == len(events) // 2 + 1


def test_a_root_has_no_runs() -> None:
    node: Any = Node("flights.long", kind="root")
    with pytest.raises(Invalid, match="is a source dataset: nothing derives it"):
        TransactionRuns(node, node.name, 20)


@pytest.mark.parametrize("more", [["--record", "1"], ["--graph", "dot"], ["--limit", "0"]])
def test_options_that_do_not_go_together_are_refused(more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["lineage", "x", "--events", "openlineage", *more]) == 2
    assert "error: " in capsys.readouterr().err

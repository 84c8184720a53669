"""Writes the graph of datasets for programs that draw: Graphviz (``dot``) and Mermaid. Pure.

Names and sources may be strangers': every text is a quoted label, and what ends one is escaped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from odfd.cli import formatting
from odfd.cli.table import clean
from odfd.control import wire

_WIDE: Final = 80
_SHAPES: Final = {"root": ("box", "[", "]"), "derivative": ("ellipse", "([", "])"), None: ("box", "[", "]")}


def dot(graph: wire.LineageGraph) -> str:
    """For ``dot -Tsvg``. Arrows lead from what is read to what is made of it; the dataset asked about is bold."""
    nodes = _whole(graph)
    lines = ["digraph lineage {", "  rankdir=LR;", '  node [fontname="sans-serif"];']
    for name, node in nodes.values():
        style = "bold" if node.relation == "self" else "dashed" if node.kind is None else "solid"
        shape, _, _ = _SHAPES[node.kind]
        lines.append(f'  {name} [label="{_label(node, _quoted, chr(92) + "n")}", shape={shape}, style={style}];')
    for source, target, alias in _arrows(nodes):
        lines.append(f"  {source} -> {target}" + (f' [label="{_quoted(alias)}"];' if alias else ";"))
    return "\n".join([*lines, "}"])


def mermaid(graph: wire.LineageGraph) -> str:
    """For a fenced block of Markdown."""
    nodes = _whole(graph)
    lines = ["flowchart LR"]
    for name, node in nodes.values():
        _, left, right = _SHAPES[node.kind]
        lines.append(f'  {name}{left}"{_label(node, _entities, "<br/>")}"{right}')
    for source, target, alias in _arrows(nodes):
        lines.append(f"  {source} -->" + (f'|"{_entities(alias)}"|' if alias else "") + f" {target}")
    return "\n".join([*lines, f"  style {nodes[graph.id][0]} stroke-width:3px"])


DRAWINGS: Final[Mapping[str, Callable[[wire.LineageGraph], str]]] = {"dot": dot, "mermaid": mermaid}


def _whole(graph: wire.LineageGraph) -> dict[str, tuple[str, wire.LineageNode]]:
    """All datasets by identity, each with its name in the drawing; inputs that are not followed are among them."""
    nodes = {node.id: node for node in graph.nodes}
    for node in graph.nodes:
        for each in node.inputs:
            nodes.setdefault(each.id, wire.LineageNode(ref=each.ref, id=each.id, relation="upstream"))
    return {identity: (f"n{number}", node) for number, (identity, node) in enumerate(nodes.items())}


def _arrows(nodes: Mapping[str, tuple[str, wire.LineageNode]]) -> Iterator[tuple[str, str, str]]:
    for name, node in nodes.values():
        for each in node.inputs:
            yield nodes[each.id][0], name, clean(each.alias if each.alias != each.ref else "", _WIDE)


def _label(node: wire.LineageNode, escape: Callable[[str], str], end: str) -> str:
    records = "" if node.records is None else formatting.plural(node.records, "record")
    lines = [node.ref, node.source, records, "not here" if node.problem is not None else ""]
    return end.join(escape(clean(line, _WIDE)) for line in lines if line)


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _entities(text: str) -> str:
    return "".join(each if each.isalnum() or each in " .,:/_-" else f"#{ord(each)};" for each in text)

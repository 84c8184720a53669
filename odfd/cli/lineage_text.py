"""Draws lineage: as trees of text, for dot and mermaid, and as a picture in SVG."""

from __future__ import annotations

import html
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from odfd.cli import formatting
from odfd.cli.table import clean
from odfd.control import wire

_OPS: Final = {1: " -R", 2: " -C", 3: " +C"}
_ROLES: Final = {"decides": "  (decides)", "change": "  (took back)"}
_WIDE: Final = 120
"""Characters of a record's values, or of an operator's text."""
Key = tuple[str, int]


def record_tree(answer: wire.Lineage) -> str:
    """Formats records as trees, each once; a repetition refers to the first place. Shards have a tree each."""
    known, shown = {(record.id, record.offset): record for record in answer.records}, set[Key]()
    lines = [line for root in answer.roots or (answer.id,) for line in _record(known, (root, answer.record), shown, "")]
    if not answer.complete:
        lines.append("not all of it could be followed: see the lines that say why; --limit N shows more of each")
    return "\n".join(lines)


def _record(known: Mapping[Key, wire.LineageRecord], key: Key, shown: set[Key], note: str) -> Iterator[str]:
    record = known.get(key)
    if record is None:
        yield f"record {key[1]}{note}  (not followed: the answer was long enough)"
        return
    head = f"{clean(record.ref, 60)} {key[1]}{_OPS.get(record.op or 0, '')}"
    if key in shown:
        yield f"{head}{note}  (shown above)"
        return
    shown.add(key)
    place = f"  block #{record.sequence_number}" if record.sequence_number is not None else ""
    yield f"{head}{note}{place}{_values(record.row)}"
    parts = [*_why(record), *_sources(record)]
    rows = record.rows
    more = record.count - len(rows)
    last = len(parts) + len(rows) + (1 if more > 0 else 0)
    at = 0
    for part in parts:
        at += 1
        yield f"{_branch(at == last)}{part}"
    for row in rows:
        at += 1
        below = _record(known, (row.id, row.offset), shown, _row_text(row, record))
        for number, line in enumerate(below):
            yield f"{_branch(at == last) if not number else _stem(at == last)}{line}"
    if more > 0:
        yield f"{_branch(True)}and {formatting.plural(more, 'record')} more of {record.count:,}"


def _branch(last: bool) -> str:
    return "└─ " if last else "├─ "


def _stem(last: bool) -> str:
    return "   " if last else "│  "


def _values(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "  (its data is not here)"
    return "  " + clean("  ".join(f"{name}={_value(value)}" for name, value in row.items()), _WIDE)


def _value(value: Any) -> str:
    return formatting.NOTHING if value is None else str(value)


def _why(record: wire.LineageRecord) -> Iterator[str]:
    """Yields the operators between a record and its inputs, each once, from the inputs up, and the missing inputs."""
    seen: dict[tuple[Any, ...], None] = {}
    for path in record.paths:
        for step in path.steps:
            place = step.query, step.line, step.column
            seen.setdefault((step.operator, step.detail, *place, step.hides))
    for operator, detail, query, line, column, hides in seen:
        where = f"  [query {query}, {line}:{column}]" if line is not None else ""
        yield f"{operator} {clean(detail, _WIDE)}".rstrip() + where
        if hides:
            yield "  rows that it took away, or added up before, bear on the record too, and are not named"
    for number in record.absent:
        path = record.paths[number]
        yield f"no record of {clean(path.ref, 60)} met it"


def _sources(record: wire.LineageRecord) -> Iterator[str]:
    origin, problem = record.origin, record.problem
    if origin is not None:
        if origin.by_hand:
            yield f"corrected by hand {formatting.moment(record.system_time)}"
            return
        where = origin.address or f"push source {origin.name}".rstrip()
        state = f"  {origin.state_kind.removeprefix('odf/')} {origin.state}" if origin.state else ""
        yield f"ingested {formatting.moment(record.system_time)} from {clean(where, _WIDE)}{clean(state, _WIDE)}"
    if problem is not None:
        hint = f"  ({problem.hint})" if problem.hint else ""
        yield clean(f"{problem.detail or problem.title}{hint}", 300)


def _row_text(row: wire.LineageRow, record: wire.LineageRecord) -> str:
    note = _ROLES.get(row.role, "")
    if row.cause and row.role != "change":
        note += "  (came with it)"
    paths = [path.id for path in record.paths]
    if row.path is not None and paths.count(row.id) > 1:
        note += f"  (path {row.path})"
    return note


def graph_tree(graph: wire.LineageGraph) -> str:
    """Formats the inputs of a dataset, and the datasets derived from it, as a tree."""
    nodes = {node.id: node for node in graph.nodes}
    lines = list(_above(nodes, graph.id, set()))
    below = [node for node in graph.nodes if node.relation == "downstream"]
    if below:
        lines += ["", "derived from it here:"]
        lines += [f"  {clean(node.ref, 60)}  from {_names_text(node.inputs)}" for node in below]
    return "\n".join(lines)


def _names_text(inputs: Sequence[wire.LineageInput]) -> str:
    return ", ".join(clean(input_.ref, 60) for input_ in inputs)


def _above(nodes: Mapping[str, wire.LineageNode], identity: str, shown: set[str]) -> Iterator[str]:
    node = nodes[identity]
    if identity in shown:
        yield f"{clean(node.ref, 60)}  (shown above)"
        return
    shown.add(identity)
    yield _dataset(node)
    inputs = node.inputs
    for number, each in enumerate(inputs, 1):
        if each.id not in nodes:
            yield f"{_branch(number == len(inputs))}{clean(each.ref, 60)}  (not followed)"
            continue
        for at, line in enumerate(_above(nodes, each.id, shown)):
            yield f"{_branch(number == len(inputs)) if not at else _stem(number == len(inputs))}{line}"


def _dataset(node: wire.LineageNode) -> str:
    head = clean(node.ref, 60)
    if node.problem:
        return f"{head}  {clean(node.problem.detail, 200)}  ({node.problem.hint})"
    records = f"{formatting.NOTHING} records" if node.records is None else formatting.plural(node.records, "record")
    parts = [head, str(node.kind), records]
    if node.watermark:
        parts.append(f"watermark {formatting.moment(node.watermark)}")
    if node.source:
        parts.append(f"from {clean(node.source, _WIDE)}")
    return "  ".join(parts)


_LABEL: Final = 80
_SHAPES: Final = {"root": ("box", "[", "]"), "derivative": ("ellipse", "([", "])"), None: ("box", "[", "]")}


def dot(graph: wire.LineageGraph) -> str:
    """Formats the graph for ``dot -Tsvg``. Arrows lead from inputs to outputs; the requested dataset is bold."""
    nodes = whole(graph)
    lines = ["digraph lineage {", "  rankdir=LR;", '  node [fontname="sans-serif"];']
    for name, node in nodes.values():
        style = "bold" if node.relation == "self" else "dashed" if node.kind is None else "solid"
        shape, _, _ = _SHAPES[node.kind]
        lines.append(f'  {name} [label="{label(node, _quote, chr(92) + "n")}", shape={shape}, style={style}];')
    for source, target, alias in arrows(nodes):
        lines.append(f"  {source} -> {target}" + (f' [label="{_quote(alias)}"];' if alias else ";"))
    return "\n".join([*lines, "}"])


def mermaid(graph: wire.LineageGraph) -> str:
    """Formats the graph as Mermaid text for a fenced block of Markdown."""
    nodes = whole(graph)
    lines = ["flowchart LR"]
    for name, node in nodes.values():
        _, left, right = _SHAPES[node.kind]
        lines.append(f'  {name}{left}"{label(node, _entities, "<br/>")}"{right}')
    for source, target, alias in arrows(nodes):
        lines.append(f"  {source} -->" + (f'|"{_entities(alias)}"|' if alias else "") + f" {target}")
    return "\n".join([*lines, f"  style {nodes[graph.id][0]} stroke-width:3px"])


def whole(graph: wire.LineageGraph) -> dict[str, tuple[str, wire.LineageNode]]:
    """Returns all datasets by identity, each with its name in the drawing, also inputs that are not followed."""
    nodes = {node.id: node for node in graph.nodes}
    for node in graph.nodes:
        for input_ in node.inputs:
            nodes.setdefault(input_.id, wire.LineageNode(ref=input_.ref, id=input_.id, relation="upstream"))
    return {identity: (f"n{number}", node) for number, (identity, node) in enumerate(nodes.items())}


def arrows(nodes: Mapping[str, tuple[str, wire.LineageNode]]) -> Iterator[tuple[str, str, str]]:
    for name, node in nodes.values():
        for input_ in node.inputs:
            yield nodes[input_.id][0], name, clean(input_.alias if input_.alias != input_.ref else "", _LABEL)


def label(node: wire.LineageNode, escape: Callable[[str], str], end: str) -> str:
    records = "" if node.records is None else formatting.plural(node.records, "record")
    lines = [node.ref, node.source, records, "not here" if node.problem is not None else ""]
    return end.join(escape(clean(line, _LABEL)) for line in lines if line)


def _quote(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _entities(text: str) -> str:
    return "".join(each if each.isalnum() or each in " .,:/_-" else f"#{ord(each)};" for each in text)


_CHARACTER: Final = 7.5
"""Pixels of a letter at a font size of 12 pixels, in the widest of common fonts."""
_LINE: Final = 16
_GAP: Final = (70, 24)
_PADDING: Final = 10


def svg(graph: wire.LineageGraph) -> str:
    """Draws the graph. Arrows lead to outputs; the requested dataset's border is thick, an absent one's dashed."""
    nodes = dict(whole(graph).values())
    edges = list(arrows(whole(graph)))
    lines = {name: label(node, html.escape, "\n").split("\n") for name, node in nodes.items()}
    boxes, width, height = _places(lines, _ranks(list(nodes), edges))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" font-family="sans-serif" '
        'font-size="12"><defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" '
        'orient="auto"><path d="M0 0L8 4L0 8z"/></marker></defs><rect width="100%" height="100%" fill="white"/>'
    ]
    parts += (_arrow(boxes[source], boxes[target], alias) for source, target, alias in edges)
    for name, node in nodes.items():
        style = ' stroke-width="3"' if node.relation == "self" else ' stroke-dasharray="4"' if node.kind is None else ""
        parts += _box(boxes[name], lines[name], style, 12 if node.kind == "derivative" else 0)
    return "\n".join([*parts, "</svg>"])


def _ranks(names: Sequence[str], edges: Sequence[tuple[str, str, str]]) -> Mapping[str, int]:
    """Returns each dataset's steps from datasets without inputs. Datasets in a false cycle stay at the left."""
    ranks = dict.fromkeys(names, 0)
    waiting = Counter(target for _, target, _ in edges)
    below = defaultdict(list)
    for source, target, _ in edges:
        below[source].append(target)
    ready = deque(name for name in names if not waiting[name])
    while ready:
        source = ready.popleft()
        for target in below[source]:
            ranks[target] = max(ranks[target], ranks[source] + 1)
            waiting[target] -= 1
            if not waiting[target]:
                ready.append(target)
    return ranks


def _places(
    lines: Mapping[str, Sequence[str]], ranks: Mapping[str, int]
) -> tuple[dict[str, tuple[float, float, float, float]], float, float]:
    """Returns left, top, width and height of each box, and width and height of the drawing."""
    boxes: dict[str, tuple[float, float, float, float]] = {}
    left, bottom = float(_PADDING), 0.0
    for rank in sorted(set(ranks.values())):
        column = [name for name in lines if ranks[name] == rank]
        wide = max(len(html.unescape(line)) for name in column for line in lines[name]) * _CHARACTER + 2 * _PADDING
        top = float(_PADDING)
        for name in column:
            high = len(lines[name]) * _LINE + _PADDING
            boxes[name] = (left, top, wide, high)
            top += high + _GAP[1]
        left, bottom = left + wide + _GAP[0], max(bottom, top)
    return boxes, left - _GAP[0] + _PADDING, bottom - _GAP[1] + _PADDING


def _box(box: tuple[float, float, float, float], lines: Sequence[str], style: str, round_: int) -> Iterator[str]:
    x, y, wide, high = box
    shape = f'x="{x:g}" y="{y:g}" width="{wide:g}" height="{high:g}" rx="{round_}"'
    yield f'<rect {shape} fill="white" stroke="black"{style}/>'
    for number, line in enumerate(lines, 1):
        yield f'<text x="{x + _PADDING:g}" y="{y + number * _LINE:g}">{line}</text>'


def _arrow(source: tuple[float, float, float, float], target: tuple[float, float, float, float], alias: str) -> str:
    x1, y1 = source[0] + source[2], source[1] + source[3] / 2
    x2, y2 = target[0], target[1] + target[3] / 2
    line = f'<path d="M{x1:g} {y1:g}L{x2:g} {y2:g}" fill="none" stroke="black" marker-end="url(#tip)"/>'
    middle = f'x="{(x1 + x2) / 2:g}" y="{(y1 + y2) / 2 - 4:g}" text-anchor="middle"'
    return line + (f"<text {middle}>{html.escape(alias)}</text>" if alias else "")

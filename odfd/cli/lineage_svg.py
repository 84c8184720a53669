"""Draws the graph of datasets as an SVG, without a layout program: each dataset stands right of its inputs."""

from __future__ import annotations

import html
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from odfd.cli.lineage_text import arrows, label, whole
from odfd.control import wire

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

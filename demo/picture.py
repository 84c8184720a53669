"""Draws the picture at the end: which node holds what, who verified it and how, and where the lie was detected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Final

WIDTH: Final = 1500
_ROW, _TOP, _BOX = 30, 96, 224
_COLOURS: Final = {"good": "#1a7f37", "weak": "#57606a", "bad": "#cf222e"}


ARROWS: Final = (
    (("heads", "blocks", "slices"), "right", "#57606a"),
    (("signed", "verdicts"), "right", "#1a7f37"),
    (("a lie",), "left", "#cf222e"),
    (("backs", "the lie"), "left", "#cf222e"),
)
"""What passes between one node and the next, which way, and how it is drawn."""


@dataclass(frozen=True)
class Holding:
    """One dataset on one node."""

    dataset: str
    blocks: str
    fact: str
    mood: str
    """``good``, ``weak`` or ``bad``."""


@dataclass(frozen=True)
class Portrait:
    """One node."""

    title: str
    role: str
    holdings: Sequence[Holding]


def draw(path: Path, portraits: Sequence[Portrait], lie: tuple[str, str], footer: str) -> None:
    """Writes the picture. ``lie``: how it was detected, and how it was repaired."""
    rows = max(len(each.holdings) for each in portraits)
    height = _TOP + 76 + rows * _ROW + 206
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        _text(30, 40, "What each node holds, and why it relies on it", 22, "#24292f", bold=True),
        _text(30, 66, "each node but Eve's checked what it holds, over libp2p and on Spark", 13, "#57606a"),
    ]
    gap = (WIDTH - 60 - len(portraits) * _BOX) // max(len(portraits) - 1, 1)
    for number, portrait in enumerate(portraits):
        x = 30 + number * (_BOX + gap)
        parts += _node(x, portrait, rows)
        if number:
            parts += _arrow(x - gap, x, *ARROWS[number - 1])
    bottom = _TOP + 76 + rows * _ROW + 40
    for line, text, fill, ink in zip((0, 56), lie, ("#ffebe9", "#dafbe1"), ("#82071e", "#116329"), strict=True):
        place = f'x="30" y="{bottom + line}" width="{WIDTH - 60}" height="44" rx="6"'
        parts.append(f'<rect {place} fill="{fill}" stroke="{ink}"/>')
        parts.append(_text(46, bottom + line + 28, text, 15, ink, bold=True))
    parts.append(_text(30, bottom + 136, footer, 13, "#57606a"))
    parts.append("</svg>")
    path.write_text("\n".join(parts))


def _arrow(start: int, end: int, words: Sequence[str], way: str, colour: str) -> list[str]:
    y, tip, tail = _TOP + 28, (end - 4 if way == "right" else start + 4), (start + 4 if way == "right" else end - 4)
    back = tip - 7 if way == "right" else tip + 7
    middle = (start + end) // 2
    parts = [
        f'<line x1="{tail}" y1="{y}" x2="{tip}" y2="{y}" stroke="{colour}" stroke-width="2"/>',
        f'<path d="M{back} {y - 5} L{tip} {y} L{back} {y + 5}" fill="none" stroke="{colour}" stroke-width="2"/>',
    ]
    for line, word in enumerate(words):
        parts.append(
            f'<text x="{middle}" y="{y + 18 + 13 * line}" font-size="11" fill="{colour}" text-anchor="middle">'
            f"{escape(word)}</text>"
        )
    return parts


def _node(x: int, portrait: Portrait, rows: int) -> list[str]:
    height = 76 + rows * _ROW
    parts = [
        f'<rect x="{x}" y="{_TOP}" width="{_BOX}" height="{height}" rx="8" fill="#f6f8fa" stroke="#8c959f"/>',
        _text(x + 16, _TOP + 28, portrait.title, 17, "#24292f", bold=True),
        _text(x + 16, _TOP + 48, portrait.role, 12, "#57606a"),
    ]
    for number, holding in enumerate(portrait.holdings):
        y = _TOP + 80 + number * _ROW
        colour = _COLOURS[holding.mood]
        parts.append(f'<circle cx="{x + 20}" cy="{y - 5}" r="5" fill="{colour}"/>')
        parts.append(_text(x + 34, y, holding.dataset, 13, "#24292f"))
        parts.append(_text(x + 34, y + 14, f"{holding.blocks} {holding.fact}", 11, colour))
    return parts


def _text(x: int, y: int, text: str, size: int, colour: str, *, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x}" y="{y}" font-size="{size}" fill="{colour}"{weight}>{escape(text)}</text>'

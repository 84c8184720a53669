"""Reads statements ``SET odf.x = y`` at the head of ``preprocess``: what a source's author declares about event times.

They are written as those of a transform (``declarations``). Declarations may stand without a query, in which case rows
are passed on as they were read. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from chain.errors import Invalid
from chain.instant import SECOND
from chain.model.source import SqlQueryStep, Transform
from engines.spark.analysis.declarations import leading_declarations, micros_behind, span_of

AHEAD: Final = 86_400 * SECOND
"""Default for how much later than its block an event time may be, nanoseconds."""
_MICROSECOND: Final = 1_000


@dataclass(frozen=True, slots=True)
class SourceDeclarations:
    """The declarations of a source; spans in nanoseconds."""

    behind: int = 0
    """Lag of the watermark behind the greatest event time."""
    ahead: int | None = AHEAD
    """How much later than its block an event time may be; ``None``: any."""


def read_source(transform: Transform | None) -> tuple[Transform | None, SourceDeclarations]:
    """Returns the query without its declarations, ``None`` for no query, and the declarations. Raises Invalid."""
    if transform is None:
        return None, SourceDeclarations()
    said = SourceDeclarations()
    steps: list[SqlQueryStep] = []
    for step in transform.queries or ((SqlQueryStep(query=transform.query),) if transform.query else ()):
        text = step.query
        if not steps:
            declared, text = leading_declarations(text)
            for name, value in declared:
                said = _declare(said, name, value)
        if text.strip():
            steps.append(step if text == step.query else msgspec.structs.replace(step, query=text))
    if not steps and said != SourceDeclarations():
        return None, said
    return msgspec.structs.replace(transform, query=None, queries=tuple(steps)), said


def _declare(said: SourceDeclarations, name: str, value: str) -> SourceDeclarations:
    word = name.removeprefix("odf.")
    if word not in _WORDS:
        raise Invalid(
            f"SET {name}: it says nothing of a source",
            rule="declaration",
            hint=f"known before the query of a source: {', '.join('odf.' + each for each in _WORDS)}",
        )
    return _WORDS[word](said, name, value)


def _watermark(said: SourceDeclarations, name: str, value: str) -> SourceDeclarations:
    return replace(said, behind=micros_behind(name, value) * _MICROSECOND)


def _ahead(said: SourceDeclarations, name: str, value: str) -> SourceDeclarations:
    if value.lower() == "any":
        return replace(said, ahead=None)
    span = span_of(value)
    if span is None:
        raise Invalid(
            f"SET {name} = '{value}': not a span of time", rule="ahead", hint="write it like '400 days', or 'any'"
        )
    return replace(said, ahead=span * _MICROSECOND)


_WORDS: Final[Mapping[str, Callable[[SourceDeclarations, str, str], SourceDeclarations]]] = {
    "watermark": _watermark,
    "ahead": _ahead,
}

"""Rewrites a query by what the engine says of another dialect's words, so that tests try the advice."""

from __future__ import annotations

from collections.abc import Sequence

from engines.spark.analysis.lexical import Phrase, Word


def translated(sql: str, words: Sequence[Word], phrases: Sequence[Phrase]) -> str:
    """The query with Spark's words in place of all phrases that have an exact translation."""
    starts = [0]
    for line in sql.split("\n"):
        starts.append(starts[-1] + len(line) + 1)
    pieces, at, after = [], 0, -1
    for phrase in phrases:
        if phrase.exact and phrase.first > after:
            first, last = words[phrase.first], words[phrase.last]
            pieces += [sql[at : starts[first.line - 1] + first.column - 1], phrase.replace]
            at, after = starts[last.line - 1] + last.column - 1 + len(last.text), phrase.last
    return "".join([*pieces, sql[at:]])

"""What the law is tried on: a text, histories to run it over, and the oracle's own words for what comes out.

``{h}`` in a text is where hidden columns ride along under DuckDB, ``{r}`` where the number of a ranked row does; for
Spark both are nothing. A shape whose text DuckDB
does not speak has a second one. ``lows`` say in plain arithmetic what the engine has to find out from the plan: the
least output time that a row of each occurrence of an input can touch.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from chain.model.source import SqlQueryStep, TemporalTable, TransformSql
from conformance import oracles
from conformance.duck import Duck, Grouping, Running
from conformance.histories import Histories, Maker
from conformance.oracles import Expected, Low

Oracle = Callable[[Duck, "Case", Histories], Expected]


@dataclass(frozen=True)
class Case:
    """A shape."""

    name: str
    text: str
    inputs: Mapping[str, Maker]
    oracle: Oracle
    duck: str = ""
    """Its text in DuckDB's words, if others."""
    head: str = ""
    """Declarations."""
    before: tuple[tuple[str, str], ...] = ()
    """Named queries before the last."""
    changelogs: tuple[str, ...] = ()
    temporal: tuple[str, ...] = ()
    lows: Mapping[str, Sequence[Low]] = field(default_factory=dict)
    running: Running | None = None
    """How DuckDB runs the text in steps, if it looks at all history."""
    grouping: Grouping | None = None
    """How DuckDB takes the text apart, if a table keeps parts of its aggregates."""

    @property
    def sql(self) -> TransformSql:
        steps = [SqlQueryStep(alias=alias, query=text) for alias, text in (*self.before, ("", self.text))]
        texts = [step.query.replace("{h}", "").replace("{r}", "") for step in steps]
        queries = tuple(
            SqlQueryStep(alias=step.alias or None, query=text) for step, text in zip(steps, texts, strict=True)
        )
        first = SqlQueryStep(alias=queries[0].alias, query=self.head + queries[0].query)
        tables = tuple(TemporalTable(name=name, primary_key=("k",)) for name in self.temporal)
        return TransformSql(engine="spark", queries=(first, *queries[1:]), temporal_tables=tables or None)

    @property
    def ducks(self) -> list[tuple[str, str]]:
        """(alias, text) of all queries for DuckDB."""
        return [*self.before, ("", self.duck or self.text)]

    @property
    def dialect(self) -> dict[str, str]:
        """DuckDB's text for each of Spark's."""
        last = {self.text.replace("{h}", "").replace("{r}", "").strip(): self.duck or self.text}
        return {**{text.replace("{h}", "").replace("{r}", "").strip(): text for _, text in self.before}, **last}

    def tell(self, duck: Duck) -> None:
        """What DuckDB has to know to stand in for Spark."""
        duck.texts, duck.running, duck.grouping = self.dialect, self.running, self.grouping

    def histories(self, rng: random.Random) -> dict[str, tuple[Any, ...]]:
        return {alias: make(rng) for alias, make in self.inputs.items()}

    def expected(self, duck: Duck, histories: Histories) -> Expected:
        return self.oracle(duck, self, histories)


def final_oracle(duck: Duck, case: Case, histories: Histories) -> Expected:
    return oracles.final(duck, case.ducks, histories, case.lows)


DAYS = (
    "select time_bucket(interval '1' day, event_time) as event_time, k, sum(v) as s, count(*) as c from a group by 1, 2"
)
"""A day's rows: the shape of most declarations."""

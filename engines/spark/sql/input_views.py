"""Describes the inputs over which a query is analysed: names, columns, and known properties of their rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession
from pyspark.sql import types as st

from chain.errors import Invalid
from engines.spark.analysis.relation import InputReadings
from engines.spark.analysis.walk import VALID_FROM, VALID_TO
from engines.spark.sql.views import name_empty_view


@dataclass(frozen=True, slots=True)
class QueryInput:
    """One input as a query sees it."""

    alias: str
    schema: st.StructType
    event_time: str
    primary_key: tuple[str, ...] = ()
    """If not empty, the query sees the versions of each key, with the times at which they were in force."""
    operation: str = "op"
    """Name of the column that says whether a row adds or takes back."""
    changes: bool | None = None
    """Whether rows can be taken back; ``None``: not known."""
    log: bool = False
    """Whether the query sees every statement as an event."""
    offset: str = "offset"
    """Name of the column that numbers the rows of the input's chain."""

    @property
    def columns(self) -> st.StructType:
        if not self.primary_key:
            return self.schema
        times = [st.StructField(name, st.TimestampType()) for name in (VALID_FROM, VALID_TO)]
        return st.StructType([*self.schema, *times])


def readings_of(inputs: Sequence[QueryInput]) -> InputReadings:
    return InputReadings(
        operations={view.alias: view.operation for view in inputs},
        logs=frozenset(view.alias for view in inputs if view.log),
        changes={view.alias: view.changes for view in inputs},
        offsets={view.alias: view.offset for view in inputs},
    )


def check_versions(view: QueryInput) -> None:
    there = set(view.schema.names)
    missing = [name for name in view.primary_key if name not in there]
    if missing:
        raise Invalid(
            f"temporal table {view.alias}: its primary key names {missing[0]}, which the input does not have",
            rule="temporal-table",
            hint=f"columns: {', '.join(view.schema.names)}",
        )
    taken = [name for name in (VALID_FROM, VALID_TO) if name in there]
    if view.primary_key and taken:
        raise Invalid(
            f"temporal table {view.alias} has a column {taken[0]} of its own",
            rule="reserved-name",
            hint="rename it in a dataset between",
        )


def name_inputs(session: SparkSession, inputs: Sequence[QueryInput]) -> None:
    for view in inputs:
        name_empty_view(session, view.columns, view.alias)

"""The preprocess queries of a source, run by Spark over the parsed rows as the view ``input``.

A chain of queries: each but the last names a view for those after it. The order of rows stays that of the input where
the queries only project and filter; where they do more (join, group, deduplicate) SQL promises none, and the result is
sorted by all its columns, so that equal input makes equal rows in equal order.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from chain.errors import Invalid
from chain.model.source import SqlQueryStep, Transform
from engines.spark.ingest.spark_types import struct_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

INPUT: Final = "input"
ENGINE: Final = "spark"
_KEEPS_ORDER: Final = {"Project", "Filter", "SubqueryAlias", "View", "Union", "LogicalRelation"}


def preprocess(spark: SparkSession, parts: Sequence[Path], schema: pa.Schema, transform: Transform) -> pa.Table:
    """Result of the last query. Views live in ``spark``, a session of this request, and are dropped.

    Raises Invalid; Spark's own errors for queries that it refuses pass through.
    """
    steps = _steps(transform)
    frames = [spark.read.schema(struct_type(schema)).parquet(str(path)) for path in parts]
    nothing = spark.createDataFrame([], struct_type(schema))
    source = functools.reduce(lambda one, other: one.unionAll(other), frames) if frames else nothing
    source.createOrReplaceTempView(INPUT)
    views = [INPUT]
    try:
        for step in steps[:-1]:
            alias = step.alias or ""
            spark.sql(step.query).createOrReplaceTempView(alias)
            views.append(alias)
        result = spark.sql(steps[-1].query)
        _check_deterministic(result)
        table = result.toArrow()
        return table if _keeps_order(result) else _totally_ordered(table)
    finally:
        for view in views:
            spark.catalog.dropTempView(view)


def _steps(transform: Transform) -> tuple[SqlQueryStep, ...]:
    if transform.engine.lower() != ENGINE:
        raise Invalid(
            f"preprocess asks for engine {transform.engine!r}, and this one is {ENGINE}",
            rule="preprocess-engine",
            hint=f"write engine: {ENGINE}",
        )
    steps = transform.queries or ((SqlQueryStep(query=transform.query),) if transform.query else ())
    if not steps:
        raise Invalid("preprocess has no query", rule="transform-has-queries")
    for step in steps[:-1]:
        if not step.alias:
            raise Invalid("all queries but the last need an alias", rule="query-aliases")
    return steps


def _check_deterministic(result: DataFrame) -> None:
    """What a block holds follows from its input, never from chance."""
    if not result._jdf.queryExecution().analyzed().deterministic():
        raise Invalid(
            "a preprocess query is not deterministic",
            rule="preprocess-deterministic",
            hint="remove rand(), uuid() and the like: the same input must make the same rows",
        )


def _keeps_order(result: DataFrame) -> bool:
    plan = json.loads(result._jdf.queryExecution().analyzed().toJSON())
    return set(_node_names(plan)) <= _KEEPS_ORDER


def _node_names(plan: list[dict[str, object]]) -> Iterator[str]:
    return (str(node["class"]).rsplit(".", 1)[-1] for node in plan)


def _totally_ordered(table: pa.Table) -> pa.Table:
    keys = [field.name for field in table.schema if not pa.types.is_nested(field.type)]
    order = pc.sort_indices(table, sort_keys=[(key, "ascending", "at_start") for key in keys])
    return table.take(order)

"""Runs the preprocess queries of a source in Spark over the parsed rows, as the view ``input``.

The queries form a chain: each but the last names a view for those after it. Rows stay in the order of the input if the
queries only project and filter; if they do more (join, group, deduplicate), SQL promises no order, and the result is
sorted by all its columns, so that equal input gives equal rows in equal order. Columns that are only passed on keep
their types; computed times are in milliseconds, and refused if that would lose digits.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from chain.errors import Invalid
from chain.model.source import SqlQueryStep, Transform
from engines.spark.analysis.determinism import literals
from engines.spark.analysis.parsed import PlanSize
from engines.spark.analysis.tree import parse_plan
from engines.spark.analysis.walk import walk_of_ingest
from engines.spark.catalyst.exact import run_exactly
from engines.spark.catalyst.plans import frame_of
from engines.spark.catalyst.types import as_written, slice_types, struct_type
from engines.spark.sql.parsing import analyse_query, as_json, parse_query
from engines.spark.sql.time_patterns import unreadable
from engines.spark.sql.views import empty_view

INPUT: Final = "input"
ENGINE: Final = "spark"
_RELATION: Final = '"class":"org.apache.spark.sql.execution.datasources.LogicalRelation"'
"""In a plan's JSON once for each file each time that the query reads it, in subqueries too."""
_KEEPS_ORDER: Final = {"Project", "Filter", "SubqueryAlias", "View", "Union", "LogicalRelation"}


def preprocess(spark: SparkSession, parts: Sequence[Path], schema: pa.Schema, transform: Transform) -> pa.Table:
    """Returns the result of the last query. Its views are in ``spark``, a session of this request, and are dropped.

    Raises Invalid; Spark's own errors for queries that it refuses pass through.
    """
    frames = [spark.read.schema(struct_type(schema)).parquet(str(path)) for path in parts]
    source = functools.reduce(DataFrame.unionAll, frames) if frames else empty_view(spark, struct_type(schema))
    with _analyse_steps(spark, source, transform) as (result, plan):
        analysed_plan = result._jdf.queryExecution().analyzed()
        rows = run_exactly(spark, analysed_plan, lambda made: frame_of(spark, made).toArrow())
        table = as_written(rows, slice_types(result.schema))
        return table if _keeps_order(plan) else _totally_ordered(table)


def preprocess_in_turns(
    spark: SparkSession, groups: Sequence[Sequence[Path]], schema: pa.Schema, transform: Transform
) -> Iterator[pa.Table]:
    """Yields the results of the last query over one group of parts at a time, which together are those over all.

    Yields nothing if the query may change the order of rows, or reads its input more than once. Raises as
    ``preprocess`` does.
    """
    for group in groups:
        frames = [spark.read.schema(struct_type(schema)).parquet(str(path)) for path in group]
        with _analyse_steps(spark, functools.reduce(DataFrame.unionAll, frames), transform) as (result, plan):
            if not _keeps_order(plan) or plan.count(_RELATION) != len(group):
                return
            yield as_written(result.toArrow(), slice_types(result.schema))


def result_schema(spark: SparkSession, schema: pa.Schema, transform: Transform) -> pa.Schema:
    """Returns the columns of ``preprocess`` for rows of ``schema``, without reading any. Raises as it does."""
    with _analyse_steps(spark, empty_view(spark, struct_type(schema)), transform) as (result, _):
        return slice_types(result.schema)


@contextlib.contextmanager
def _analyse_steps(spark: SparkSession, source: DataFrame, transform: Transform) -> Iterator[tuple[DataFrame, str]]:
    """Yields the last query, judged and analysed over ``source`` but not run yet, and its plan's JSON."""
    steps = _steps(transform)
    source.createOrReplaceTempView(INPUT)
    views = [INPUT]
    try:
        sizes: dict[str, PlanSize] = {}
        for step in steps:
            query = parse_query(spark, step.query, sizes)
            for finding in literals(query.judgement.undated):
                raise _refusal(finding.message, finding.replace)
            found = analyse_query(spark, query)
            plan = _check_plan(spark, found)
            result = frame_of(spark, found)
            if step is not steps[-1]:
                alias = step.alias or ""
                sizes[alias] = query.judgement.size
                result.createOrReplaceTempView(alias)
                views.append(alias)
        yield result, plan
    finally:
        for view in views:
            spark.catalog.dropTempView(view)


def _steps(transform: Transform) -> tuple[SqlQueryStep, ...]:
    if transform.engine.lower() != ENGINE:
        raise Invalid(
            f"preprocess requires engine {transform.engine!r}, and this one is {ENGINE}",
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


def _check_plan(spark: SparkSession, plan: Any) -> str:
    """Returns the analysed plan's JSON. Raises Invalid if rows could depend on a clock, chance or the machine, as the
    walk of a transform finds it (``analysis.walk`` says what differs)."""
    text = as_json(plan)
    root = parse_plan(text)
    for finding in walk_of_ingest(root, INPUT):
        raise _refusal(finding.message, finding.replace)
    for finding in unreadable(spark, root):
        raise Invalid(finding.message, rule=finding.code, hint=finding.replace or "")
    if not plan.deterministic():
        raise _refusal("a preprocess query is not deterministic", "remove what is drawn by chance")
    return text


def _refusal(message: str, instead: str | None) -> Invalid:
    return Invalid(message, rule="preprocess-deterministic", hint=instead or "the same input must make the same rows")


def _keeps_order(plan: str) -> bool:
    operators = msgspec.json.decode(plan)
    return {node["class"].rpartition(".")[2] for node in operators} <= _KEEPS_ORDER


def _totally_ordered(table: pa.Table) -> pa.Table:
    keys = [field.name for field in table.schema if not pa.types.is_nested(field.type)]
    if not keys:
        return table
    order = pc.sort_indices(table, sort_keys=[(key, "ascending", "at_start") for key in keys])
    return table.take(order)

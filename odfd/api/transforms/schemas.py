"""Determines the schema that a dataset has, or will have once its first data comes.

A transform can be checked before there is data to run it on: a root dataset's first slice will have the columns that
its source reads and its preprocessing makes, and the engine tells those.
"""

from __future__ import annotations

from typing import Final

import msgspec

from chain.codec.arrow_schema import schema_of
from chain.data.ddl import parse_ddl
from chain.ids import DatasetId
from chain.model.events import DatasetKind
from chain.model.schema import DataField, DataSchema, Int32, Int64, Option, Timestamp, TimeUnit
from chain.model.source import ReadStep, Transform
from chain.state import ChainState, Vocab
from engines.contract import Engine, ValidateInput, ValidateRequest, ValidateResponse
from engines.spark.analysis.source_declarations import read_source
from odfd.transform.inputs import is_changelog
from odfd.transform.plan import vocabulary

_NO_DATASET: Final = DatasetId.from_public_key(bytes(32))
"""Stands for what a source reads, which is no dataset yet."""


class ExpectedSchema(msgspec.Struct, frozen=True):
    """``changelog``: its rows can be retracted and corrected; ``None``: its chain does not say."""

    schema: DataSchema
    changelog: bool | None


async def expected_schema(state: ChainState, engine: Engine) -> ExpectedSchema | None:
    """``None`` when it cannot be told before there is data."""
    changelog = is_changelog(state)
    if state.schema is not None:
        return ExpectedSchema(schema_of(state.schema), changelog)
    source = state.polling_source or next(iter(state.active_push_sources.values()), None)
    if state.kind is not DatasetKind.ROOT or source is None:
        return None
    columns = read_schema(source.read)
    if columns is None:
        return None
    query, _ = read_source(source.preprocess)
    if query is not None:
        answer = await judge_preprocess(query, columns, state.vocab, engine)
        if not answer.ok or answer.schema is None:
            return None
        columns = answer.schema
    return ExpectedSchema(with_system_columns(columns, state.vocab), changelog)


async def judge_preprocess(query: Transform, columns: DataSchema, names: Vocab, engine: Engine) -> ValidateResponse:
    """What the engine says of a source's ``preprocess``, its declarations taken off, over the columns that it reads."""
    vocab = vocabulary(names)
    given = ValidateInput(query_alias="input", dataset_id=_NO_DATASET, schema=columns, vocab=vocab, changelog=False)
    return await engine.validate(ValidateRequest(transform=query, inputs=(given,), vocab=vocab, preprocess=True))


def read_schema(read: ReadStep) -> DataSchema | None:
    """The columns that a read step declares."""
    if read.schema is not None:
        return read.schema
    if read.ddl_schema:
        return parse_ddl(read.ddl_schema)
    return None


def with_system_columns(columns: DataSchema, names: Vocab) -> DataSchema:
    """offset, op, system_time, event_time, then the data columns in their order."""
    stamp = Timestamp(unit=TimeUnit.MILLISECOND, timezone="UTC")
    reserved = {names.offset, names.operation_type, names.system_time, names.event_time}
    event_time = next((each for each in columns.fields if each.name == names.event_time), None)
    return DataSchema(
        fields=(
            DataField(name=names.offset, type=Int64()),
            DataField(name=names.operation_type, type=Int32()),
            DataField(name=names.system_time, type=stamp),
            event_time or DataField(name=names.event_time, type=Option(inner=stamp)),
            *(each for each in columns.fields if each.name not in reserved),
        )
    )

"""Checks a transform before it is recorded: the engine analyses it with the schemas of its inputs.

A transform can be checked before there is data to run it on: the first slice of a root dataset will have the columns
that its source reads and its preprocessing makes, which the engine can tell. If the dataset has rows, the engine says
whether the transform can go on from them. A transform that cannot is refused when it is applied, with the way to derive
anew. The checks decide nothing that the next transaction would not decide in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import trio

from chain.codec.arrow_schema import schema_of
from chain.data.ddl import parse_ddl
from chain.errors import Invalid, Refused
from chain.ids import DatasetId
from chain.instant import Instant
from chain.model.events import DatasetKind, SetTransform, Vocab
from chain.model.schema import DataField, DataSchema, Int32, Int64, Option, Timestamp, TimeUnit
from chain.model.source import ReadStep, Transform
from chain.state import ChainState, load_state
from chain.store.base import ChainStore
from chain.walk import first_where
from engines.contract import (
    DerivationNeeded,
    Engine,
    EngineInternalError,
    InvalidQuery,
    ValidateInput,
    ValidateRequest,
    ValidateResponse,
)
from engines.errors import engine_failed
from engines.spark.analysis.declarations import read_query
from engines.spark.analysis.source_declarations import read_source
from odfd.datasets.creation import input_ids
from odfd.store.directory import STAGING, StateDirectory
from odfd.transform.driver import fresh_folder
from odfd.transform.inputs import is_changelog
from odfd.transform.plan import TRANSFORM_EVOLUTION, Blocked
from odfd.transform.succession import judgement

_NO_DATASET: Final = DatasetId.from_public_key(bytes(32))
"""Stands for the rows that a source reads, which are no dataset yet."""


class ExpectedSchema(msgspec.Struct, frozen=True):
    """The schema that a dataset has or will have.

    ``changelog``: whether its rows can be retracted; ``None`` if its chain does not state it.
    """

    schema: DataSchema
    changelog: bool | None


async def expected_schema(state: ChainState, engine: Engine) -> ExpectedSchema | None:
    """Returns the schema that a chain has or will have; ``None`` if it is unknown before there is data."""
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
    """Lets the engine check a source's ``preprocess``, without its declarations, over the columns that it reads."""
    given = ValidateInput(query_alias="input", dataset_id=_NO_DATASET, schema=columns, vocab=names, changelog=False)
    return await engine.validate(ValidateRequest(transform=query, inputs=(given,), vocab=names, preprocess=True))


def read_schema(read: ReadStep) -> DataSchema | None:
    """Returns the columns that a read step declares, or ``None``."""
    if read.schema is not None:
        return read.schema
    if read.ddl_schema:
        return parse_ddl(read.ddl_schema)
    return None


def with_system_columns(columns: DataSchema, names: Vocab) -> DataSchema:
    """Returns the schema of a slice: offset, op, system_time, event_time, then the data columns in their order."""
    stamp = Timestamp(unit=TimeUnit.MILLISECOND, timezone="UTC")
    reserved = {names.offset, names.operation_type, names.system_time, names.event_time}
    event_time = next((field for field in columns.fields if field.name == names.event_time), None)
    return DataSchema(
        fields=(
            DataField(name=names.offset, type=Int64()),
            DataField(name=names.operation_type, type=Int32()),
            DataField(name=names.system_time, type=stamp),
            event_time or DataField(name=names.event_time, type=Option(inner=stamp)),
            *(field for field in columns.fields if field.name not in reserved),
        )
    )


class TransformCheck:
    """Lets the engine check transforms against the schemas of their inputs."""

    def __init__(
        self, home: StateDirectory, engine: Engine, state: Callable[[DatasetId], ChainState] | None = None
    ) -> None:
        """``state`` returns the state of an input, if that differs from its chain's. Blocking."""
        self._home = home
        self._engine = engine
        self._state = state or (lambda dataset: load_state(home.chains.chain(dataset)))

    async def validate(self, event: SetTransform, names: Vocab) -> ValidateResponse | None:
        """Lets the engine check a transform; returns ``None`` while an input has no schema yet.

        ``names``: the system columns of the derived dataset.
        """
        inputs = await self.inputs(event)
        if inputs is None:
            return None
        request = ValidateRequest(transform=event.transform, inputs=inputs, vocab=names)
        return await self._engine.validate(request)

    async def remarks(self, event: SetTransform, answer: ValidateResponse) -> tuple[str, ...]:
        """Lists remarks on a valid transform: whether its history depends on when its inputs were pulled."""
        if answer.mode != "table":
            return ()
        grid = read_query(event.transform).declarations.tick is not None
        inputs = await self.inputs(event) or ()
        states = await self._states(event)
        derived = {id_ for id_, state in zip(input_ids(event), states, strict=True) if state.set_transform is not None}
        found = [
            input_ for input_ in inputs if (input_.changes is not False or not grid) and input_.dataset_id in derived
        ]
        if not found:
            return ()
        names = ", ".join(each.query_alias for each in found)
        tables = any(each.changes is not False for each in found)
        instead = "" if tables else "; SET odf.tick = '1 day' looks at it at the places of a calendar instead"
        return (
            f"the table is looked at after each block of {names}, and a derived dataset has a block for each pull that "
            f"brought something: pulled at other times, its rows would come to the same by other corrections{instead}",
        )

    async def unknown_input(self, event: SetTransform) -> str:
        """Explains why the query cannot be checked yet: the first input without a schema, and what it lacks."""
        for each, state in zip(event.inputs, await self._states(event), strict=True):
            if await expected_schema(state, self._engine) is None:
                return f"input {each.alias or each.dataset_ref} has no schema yet, for {_lacking(state)}"
        return "an input has no schema yet"

    async def determinism(self, dataset: DatasetId) -> str:
        """Returns this node's own analysis of the transform in force: ``strict``, ``no`` or ``unknown``."""
        state = await trio.to_thread.run_sync(load_state, self._home.chains.chain(dataset))
        answer = await self.validate(state.set_transform, state.vocab) if state.set_transform else None
        return answer.determinism if answer else "unknown"

    async def inputs(self, event: SetTransform) -> tuple[ValidateInput, ...] | None:
        """Returns the inputs as they are or will be; ``None`` if the schema of one is unknown."""
        found = []
        states = await self._states(event)
        for each, dataset, state in zip(event.inputs, input_ids(event), states, strict=True):
            expected = await expected_schema(state, self._engine)
            if expected is None:
                return None
            found.append(
                ValidateInput(
                    query_alias=each.alias or each.dataset_ref,
                    dataset_id=dataset,
                    schema=expected.schema,
                    vocab=state.vocab,
                    changelog=bool(expected.changelog),
                    unsaid=True if expected.changelog is None else None,
                )
            )
        return tuple(found)

    async def _states(self, event: SetTransform) -> Sequence[ChainState]:
        """Returns the states of all inputs."""
        return await trio.to_thread.run_sync(lambda: [self._state(id_) for id_ in input_ids(event)])


def _lacking(state: ChainState) -> str:
    if state.head is None:
        return "nothing of it is here"
    if state.kind is DatasetKind.DERIVATIVE:
        return "it is derived itself and was never pulled"
    source = state.polling_source or next(iter(state.active_push_sources.values()), None)
    if source is None:
        return "it has no source"
    if source.read.schema is None and not source.read.ddl_schema:
        return "its read step states no columns (read.schema)"
    return "its preprocess query is refused"


class EvolutionCheck:
    """Checks whether a changed transform can go on from the history of its dataset; writes nothing that stays."""

    def __init__(self, home: StateDirectory, engine: Engine, check: TransformCheck) -> None:
        self._home = home
        self._engine = engine
        self._check = check

    async def check(self, name: str, state: ChainState, event: SetTransform, now: Instant) -> None:
        """Raises Refused if the dataset would have to be derived again, Invalid for a query that cannot run."""
        inputs = await self._check.inputs(event)
        if state.schema is None or inputs is None:
            return
        chains = self._home.chains
        async with fresh_folder(self._home.folder(STAGING)) as folder:
            way, request = await trio.to_thread.run_sync(
                lambda: (way_anew(chains, name, state), judgement(chains, state, event, inputs, now, folder))
            )
            if isinstance(request, Blocked):
                raise Refused(request.reason, rule=request.rule or TRANSFORM_EVOLUTION, hint=request.hint)
            answer = await self._engine.migrate(request)
        match answer:
            case InvalidQuery(message=message, rule=rule, hint=hint, place=place):
                raise Invalid(message, rule=rule or "transform", hint=hint or "", place=place or "")
            case EngineInternalError(message=message):
                raise engine_failed(message)
            case DerivationNeeded(message=message):
                raise Refused(
                    f"the new transform of {name} cannot continue from its history: {message}",
                    rule=TRANSFORM_EVOLUTION,
                    hint=way,
                )


def way_anew(chains: ChainStore, name: str, state: ChainState) -> str:
    """Returns the command by which a dataset is derived again from the beginning. Synchronous."""
    assert state.dataset is not None
    first = first_where(chains.chain(state.dataset), ("SetDataSchema", "ExecuteTransform"), 0, state.size)
    number = state.sequence_number if first is None else first.sequence_number - 1
    return (
        f"derive it again: odfctl reset {name} '#{number}', then apply it again and odfctl pull {name}; "
        "or apply it under another name, as a dataset of its own"
    )

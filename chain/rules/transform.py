"""Checks SetTransform, and that each ExecuteTransform continues from the one before. Spec: Transforms."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import ClassVar, Final

from chain.errors import Invalid
from chain.ids import DatasetId
from chain.libraries import np
from chain.model.block import Block
from chain.model.events import (
    AddData,
    AddPushSource,
    ExecuteTransform,
    ExecuteTransformInput,
    SetPollingSource,
    SetTransform,
)
from chain.model.source import Transform
from chain.rules.columns import Column, Mask, Run
from chain.rules.events import advances
from chain.rules.rule import Rule, Violation
from chain.state import ChainState, InputPosition

_WITH_QUERIES = (SetTransform, SetPollingSource, AddPushSource)
_START = InputPosition(None, None)
_BLOCK, _OFFSET = "block_hash", "offset"
_WORDS: Final = {_BLOCK: "BlockHash", _OFFSET: "Offset"}


class TransformHasInputs(Rule):
    """A transform reads at least one dataset."""

    name = "transform-inputs"
    clause = "SetTransform.inputs"
    concerns = (SetTransform,)

    def check(self, state: ChainState, block: Block) -> Iterator[Violation]:
        if isinstance(block.event, SetTransform) and not block.event.inputs:
            yield self.broken("a transform needs at least one input", hint="name the datasets it reads under inputs")


class InputsAreDistinct(Rule):
    """An input is named once; queries may use it any number of times."""

    name = "transform-inputs-distinct"
    clause = "SetTransform.inputs"
    concerns = (SetTransform,)

    def check(self, state: ChainState, block: Block) -> Iterator[Violation]:
        if not isinstance(block.event, SetTransform):
            return
        counts = Counter(input_.dataset_ref for input_ in block.event.inputs)
        for ref, count in counts.items():
            if count > 1:
                yield self.broken(f"input {ref} is named {count} times", hint="name it once; a query may use it twice")


class InputsAreResolved(Rule):
    """Inputs in a chain are ids with aliases, because names can change."""

    name = "transform-inputs-resolved"
    clause = "SetTransform.inputs, TransformInput"
    concerns = (SetTransform,)

    def check(self, state: ChainState, block: Block) -> Iterator[Violation]:
        if not isinstance(block.event, SetTransform):
            return
        for input_ in block.event.inputs:
            if _identity(input_.dataset_ref) is None:
                yield self.broken(f"input {input_.dataset_ref!r} is not resolved", expected="did:odf:…")
            if input_.alias is None:
                yield self.broken(f"input {input_.dataset_ref} has no alias")


class QueriesAreNormalised(Rule):
    """A chain has ``queries``; the shorthand ``query`` is for manifests only."""

    name = "queries-normalised"
    clause = "TransformSql.query"
    concerns = _WITH_QUERIES

    def check(self, state: ChainState, block: Block) -> Iterator[Violation]:
        transform = _transform(block)
        if transform is not None and transform.query is not None:
            yield self.broken("the shorthand query is not allowed in a chain", hint="write it as queries: [{query: …}]")


class QueriesExist(Rule):
    """A transform, or a preprocess step, has at least one query."""

    name = "queries-present"
    clause = "TransformSql.queries"
    concerns = _WITH_QUERIES

    def check(self, state: ChainState, block: Block) -> Iterator[Violation]:
        transform = _transform(block)
        if transform is not None and not transform.queries:
            yield self.broken("a transform needs at least one query")


class LastQueryIsOutput(Rule):
    """The last query has no alias: its rows are the result."""

    name = "queries-output"
    clause = "TransformSql.queries, SqlQueryStep.alias"
    concerns = _WITH_QUERIES

    def check(self, state: ChainState, block: Block) -> Iterator[Violation]:
        transform = _transform(block)
        if transform is not None and transform.queries and transform.queries[-1].alias is not None:
            yield self.broken(
                "the last query has an alias", expected="none: it is the output", actual=transform.queries[-1].alias
            )


class OtherQueriesHaveAliases(Rule):
    """Every query except the last has an alias, by which later queries refer to it."""

    name = "queries-aliased"
    clause = "TransformSql.queries, SqlQueryStep.alias"
    concerns = _WITH_QUERIES

    def check(self, state: ChainState, block: Block) -> Iterator[Violation]:
        transform = _transform(block)
        for number, each in enumerate((transform.queries or ())[:-1] if transform else ()):
            if each.alias is None:
                yield self.broken(f"query {number} has no alias", hint="only the last one, the output, has none")


class TransformIsDeclared(Rule):
    """A transaction executes a transform that was declared before it."""

    name = "transform-declared"
    clause = "ExecuteTransform; must be preceded by SetTransform"
    concerns = (ExecuteTransform,)

    def check(self, state: ChainState, block: Block) -> Iterator[Violation]:
        if state.set_transform is None and not state.may_hold(SetTransform):
            yield self.broken("ExecuteTransform without a SetTransform before it")

    def doubts(self, run: Run) -> Mask:
        return np.full(run.size, run.state.set_transform is None and not run.state.may_hold(SetTransform))


class InputsAreInOrder(Rule):
    """Inputs are those of SetTransform, all of them, in its order."""

    name = "query-inputs-order"
    clause = "ExecuteTransform.queryInputs"
    concerns = (ExecuteTransform,)

    def check(self, state: ChainState, block: Block) -> Iterator[Violation]:
        if not isinstance(block.event, ExecuteTransform) or state.set_transform is None:
            return
        declared, actual = _declared(state.set_transform), _inputs(block.event)
        if declared != actual:
            yield self.broken(
                "inputs are not those of SetTransform in their order",
                expected=_listed(declared),
                actual=_listed(actual),
            )

    def doubts(self, run: Run) -> Mask:
        declared = run.state.set_transform
        return np.full(run.size, declared is not None and _declared(declared) != _inputs(run.event))


class _InputRule(Rule):
    """A rule on each input of a transaction, given the position at which the transaction before left that input."""

    concerns = (ExecuteTransform,)

    def check(self, state: ChainState, block: Block) -> Iterator[Violation]:
        if isinstance(block.event, ExecuteTransform):
            positions = state.input_positions
            for input_ in block.event.query_inputs:
                yield from self.check_input(input_, positions.get(input_.dataset_id, _START))

    def doubts(self, run: Run) -> Mask:
        inputs = _inputs(run.event)
        if len(set(inputs)) != len(inputs):
            return np.ones(run.size, np.bool_)
        positions = run.state.input_positions
        doubts = np.zeros(run.size, np.bool_)
        for number, each in enumerate(inputs):
            doubts |= self.doubt_input(_InputRun(run, number, positions.get(each, _START)))
        return doubts

    @abstractmethod
    def check_input(self, each: ExecuteTransformInput, position: InputPosition) -> Iterator[Violation]:
        """Does ``check`` for one input, whose position after the transaction before is ``position``."""

    @abstractmethod
    def doubt_input(self, each: _InputRun) -> Mask:
        """Does ``doubts`` for one input."""


class _InputRun:
    """One input of all blocks of a run, with its position before the run; a ``part`` is a field of InputPosition."""

    def __init__(self, run: Run, number: int, position: InputPosition) -> None:
        self._run = run
        self._position = position
        self._path = f"event.query_inputs.{number}."

    def prev(self, part: str) -> Column:
        return self._column("prev_" + part)

    def new(self, part: str) -> Column:
        return self._column("new_" + part)

    def before(self, part: str) -> Column:
        """Returns the input's position before each block, as the transaction before left it."""
        return self._run.before(self.new(part).or_else(self.prev(part)), getattr(self._position, part))

    def _column(self, name: str) -> Column:
        return (self._run.digests if name.endswith(_BLOCK) else self._run.numbers)(self._path + name)


class _InputAdvances(_InputRule):
    """Requires that a new position of an input differs from the one before."""

    part: ClassVar[str]

    def check_input(self, each: ExecuteTransformInput, position: InputPosition) -> Iterator[Violation]:
        new = getattr(each, "new_" + self.part)
        if new is not None and new == getattr(each, "prev_" + self.part):
            yield self.broken(
                f"input {each.dataset_id}: new{_WORDS[self.part]} is prev{_WORDS[self.part]}",
                hint="leave it out when nothing is new",
            )

    def doubt_input(self, each: _InputRun) -> Mask:
        return each.new(self.part).present & each.new(self.part).same(each.prev(self.part))


class InputBlocksAdvance(_InputAdvances):
    """The new block of an input that advances differs from the one before."""

    name = "input-block-interval"
    clause = "ExecuteTransformInput.newBlockHash; Invalid input block interval"
    part = _BLOCK


class InputOffsetsAdvance(_InputAdvances):
    """The new offset of an input that adds rows differs from the one before."""

    name = "input-offset-interval"
    clause = "ExecuteTransformInput.newOffset; Invalid input offset interval"
    part = _OFFSET


class _InputContinues(_InputRule):
    """Requires that an input continues from the position at which the transaction before left it."""

    part: ClassVar[str]

    def check_input(self, each: ExecuteTransformInput, position: InputPosition) -> Iterator[Violation]:
        prev, left = getattr(each, "prev_" + self.part), getattr(position, self.part)
        if prev != left:
            what = "block" if self.part == _BLOCK else "offset"
            yield self.broken(
                f"input {each.dataset_id}: prev{_WORDS[self.part]} is not the last {what} consumed",
                expected="none" if left is None else left,
                actual="none" if prev is None else prev,
            )

    def doubt_input(self, each: _InputRun) -> Mask:
        return ~each.prev(self.part).same(each.before(self.part))


class InputBlocksContinue(_InputContinues):
    """An input continues from the position of the transaction before, the first from the beginning."""

    name = "input-prev-block"
    clause = "ExecuteTransformInput.prevBlockHash"
    part = _BLOCK


class InputOffsetsContinue(_InputContinues):
    """The first offset read of an input follows the last one that was read of it before."""

    name = "input-prev-offset"
    clause = "ExecuteTransformInput.prevOffset"
    part = _OFFSET


class InputOffsetsComeWithBlocks(_InputRule):
    """A new offset needs a new block, since rows come in blocks."""

    name = "input-offset-without-block"
    clause = "ExecuteTransformInput.newOffset, newBlockHash"

    def check_input(self, each: ExecuteTransformInput, position: InputPosition) -> Iterator[Violation]:
        if each.new_offset is not None and each.new_block_hash is None:
            yield self.broken(f"input {each.dataset_id}: newOffset without newBlockHash", actual=each.new_offset)

    def doubt_input(self, each: _InputRun) -> Mask:
        return each.new(_OFFSET).present & ~each.new(_BLOCK).present


class TransformAdvances(Rule):
    """A transaction without rows moves an input, the checkpoint or the watermark."""

    name = "execute-transform-no-op"
    clause = "ExecuteTransform; NoOpEvent"
    concerns = (ExecuteTransform,)

    def check(self, state: ChainState, block: Block) -> Iterator[Violation]:
        event = block.event
        if not isinstance(event, ExecuteTransform) or event.new_data is not None or block.unknown_fields:
            return
        checkpoint = event.new_checkpoint.physical_hash if event.new_checkpoint else None
        moved = (
            checkpoint != event.prev_checkpoint
            or event.new_watermark != state.watermark
            or any(input_.new_block_hash is not None for input_ in event.query_inputs)
        )
        if not moved:
            yield self.broken("the event has no data and advances nothing", hint="write no block when nothing happened")

    def doubts(self, run: Run) -> Mask:
        moved = run.has("event.new_data") | advances(run)
        for number in range(len(_inputs(run.event))):
            moved |= run.has(f"event.query_inputs.{number}.new_block_hash")
        return ~moved


def _transform(block: Block) -> Transform | None:
    match block.event:
        case SetTransform(transform=transform):
            return transform
        case SetPollingSource(preprocess=transform) | AddPushSource(preprocess=transform):
            return transform
        case _:
            return None


def _declared(transform: SetTransform) -> list[DatasetId | None]:
    return [_identity(input_.dataset_ref) for input_ in transform.inputs]


def _inputs(event: AddData | ExecuteTransform) -> list[DatasetId]:
    return [input_.dataset_id for input_ in event.query_inputs] if isinstance(event, ExecuteTransform) else []


def _identity(ref: str) -> DatasetId | None:
    try:
        return DatasetId.parse(ref)
    except Invalid:
        return None


def _listed(ids: Sequence[DatasetId | None]) -> str:
    return ", ".join(str(id_) for id_ in ids) or "none"

"""Reads the inputs of a transform from their chains: blocks after a position, and blocks that a checkpoint reopens.

Costs in proportion to the blocks named, never to a chain's length. Synchronous, like the store it reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from chain.codec.arrow_schema import schema_of
from chain.errors import Invalid, NotFound
from chain.ids import DatasetId
from chain.model.block import Block
from chain.model.changelog import says_by_time, says_changelog
from chain.model.events import (
    AddData,
    AddPushSource,
    ExecuteTransform,
    SetDataSchema,
    SetPollingSource,
    SetVocab,
    TransformInput,
    Vocab,
)
from chain.model.schema import DataSchema
from chain.model.source import traits
from chain.multihash import Multihash
from chain.state import ChainState, InputPosition, load_state
from chain.store.base import ChainReader, Head
from odfd.transform.checkpoint_info import Runs
from odfd.transform.evolution import DeclaredTransform, columns_known
from odfd.transform.plan import DataBlock, Diverged, InputView

_DATA = ("AddData", "ExecuteTransform")


class ChainPrefix:
    """The first ``size`` blocks of a chain, for planning as it was before a recorded block."""

    def __init__(self, reader: ChainReader, size: int) -> None:
        self._reader = reader
        self._size = size

    def head(self) -> Head | None:
        if not self._size:
            return None
        last = self._reader.block_at(self._size - 1)
        return Head(last.hash, last.sequence_number)

    def block_at(self, sequence_number: int) -> Block:
        if sequence_number >= self._size:
            raise NotFound(f"block #{sequence_number} of a chain of {self._size}", rule="block-number")
        return self._reader.block_at(sequence_number)

    def last_of(self, kinds: Iterable[str], before: int | None = None) -> Block | None:
        return self._reader.last_of(kinds, self._size if before is None else min(before, self._size))


def usable_cut(reader: ChainReader, head: Head, usable: int, position: InputPosition) -> Multihash | None:
    """Returns the last block of an input to consume if ``usable`` blocks may be; ``None``: not even the first.

    Consumed blocks are never given back: the result is never before the consumed position.
    """
    if usable > head.sequence_number:
        return head.hash
    if position.block_hash is not None:
        try:
            left_at = reader.block_by_hash(position.block_hash).sequence_number
        except NotFound:
            return head.hash  # another history, which is reported first
        usable = max(usable, left_at + 1)
    return reader.block_at(usable - 1).hash if usable else None


def input_ids(state: ChainState) -> tuple[tuple[DatasetId, TransformInput], ...]:
    """Returns the inputs of the current transform, in order. Raises Invalid for one that is still a name."""
    inputs = state.set_transform.inputs if state.set_transform is not None else ()
    return tuple((DatasetId.parse(input_.dataset_ref), input_) for input_ in inputs)


def is_changelog(state: ChainState) -> bool | None:
    """Whether a chain's rows can be retracted and corrected, read from the chain, never guessed from data.

    For a root its sources decide, and its schema once a row was corrected by hand. ``None`` for a derived dataset whose
    schema does not say: its engine did not know, or was another implementation.
    """
    declared = says_changelog(schema_of(state.schema)) if state.schema is not None else None
    if state.set_transform is not None:
        return declared
    return bool(declared) or not only_appends(state)


def only_appends(state: ChainState) -> bool:
    """Whether a root's sources only append rows; other changes were then written by hand."""
    sources: list[SetPollingSource | AddPushSource] = list(state.push_sources.values())
    if state.set_polling_source is not None:
        sources.append(state.set_polling_source)
    return all(traits(source.merge).only_adds for source in sources)


def is_by_time(state: ChainState) -> bool:
    """Whether event time ranks the versions of a key although rows can be retracted."""
    return state.schema is not None and says_by_time(schema_of(state.schema))


def view_input(
    reader: ChainReader,
    dataset: DatasetId,
    alias: str,
    position: InputPosition,
    cut: Multihash,
    reopen: Runs,
    declared: DeclaredTransform | None = None,
) -> InputView | Diverged:
    """Returns one input after ``position`` and up to ``cut``, with the ranges in ``reopen``.

    Its columns are those known when the transform was ``declared``; without a declaration, those at the cut.
    """
    numbers = {}
    first = declared.cuts.get(dataset) if declared is not None else None
    for needed in filter(None, (cut, position.block_hash, first)):
        try:
            numbers[needed] = reader.block_by_hash(needed).sequence_number
        except NotFound:
            return Diverged(alias, needed)
    stop = numbers[cut] + 1
    start = numbers[position.block_hash] + 1 if position.block_hash else 0
    if start > stop:
        return Diverged(alias, cut)
    known = numbers[first] + 1 if first is not None else stop
    new = tuple(_data_blocks(reader, start, stop))
    last = new[-1] if new else _before(reader, stop)
    state = load_state(ChainPrefix(reader, stop))
    return InputView(
        dataset=dataset,
        name=alias,
        alias=alias,
        position=position,
        cut=cut,
        last_offset=_last_offset(reader, last),
        new=new,
        reopened=tuple(_reopen(reader, start, reopen)),
        schema=_schema(reader, stop) if declared is None else columns_known(reader, known, declared.time),
        vocab=_vocab(reader, stop),
        changelog=is_changelog(state),
        by_time=is_by_time(state),
    )


def consumed_blocks(reader: ChainReader, position: InputPosition) -> tuple[DataBlock, ...]:
    """Returns all consumed data blocks of an input, oldest first. Raises NotFound if the position is unknown."""
    if position.block_hash is None:
        return ()
    return tuple(_data_blocks(reader, 0, reader.block_by_hash(position.block_hash).sequence_number + 1))


def select_blocks(blocks: Sequence[DataBlock], runs: Runs) -> tuple[DataBlock, ...]:
    """Selects the blocks in the ranges ``runs``. Raises Invalid for a range that is not among them."""
    places = {block.hash: place for place, block in enumerate(blocks)}
    wanted: set[int] = set()
    for first, last in runs:
        if not places.get(first, len(blocks)) <= places.get(last, -1):
            raise Invalid("the checkpoint names a block that was not consumed", rule="open-blocks")
        wanted.update(range(places[first], places[last] + 1))
    return tuple(blocks[place] for place in sorted(wanted))


def _data_blocks(reader: ChainReader, start: int, stop: int) -> Iterator[DataBlock]:
    """Yields data blocks with ``start <= number < stop``, oldest first."""
    found: list[Block] = []
    before = stop
    while (block := reader.last_of(_DATA, before)) is not None and block.sequence_number >= start:
        found.append(block)
        before = block.sequence_number
    # Data blocks never drop the watermark, by the rules, so that of the newest block before is the greatest.
    watermark = _data(block).new_watermark if block is not None else None
    for each in reversed(found):
        event = _data(each)
        made = DataBlock(
            hash=each.hash,
            sequence_number=each.sequence_number,
            system_time=each.system_time,
            new_data=event.new_data,
            stated_watermark=event.new_watermark,
            watermark_before=watermark,
        )
        yield made
        watermark = made.watermark_after


def _reopen(reader: ChainReader, position: int, runs: Runs) -> Iterator[DataBlock]:
    """Yields the blocks of all ranges in chain order, each once. Raises Invalid for a range that was not consumed."""
    spans = []
    for first, last in runs:
        try:
            span = reader.block_by_hash(first).sequence_number, reader.block_by_hash(last).sequence_number + 1
        except NotFound as error:
            raise Invalid(
                "the checkpoint names a block that is not in the input's chain",
                rule="open-blocks",
                hint="replay the transform from its start",
            ) from error
        if not span[0] < span[1] <= position:
            raise Invalid("the checkpoint names blocks that were not consumed yet", rule="open-blocks")
        spans.append(span)
    done = 0
    for start, stop in sorted(spans):
        yield from _data_blocks(reader, max(start, done), stop)
        done = max(done, stop)


def _before(reader: ChainReader, stop: int) -> DataBlock | None:
    block = reader.last_of(_DATA, stop)
    return None if block is None else next(_data_blocks(reader, block.sequence_number, stop))


def _last_offset(reader: ChainReader, last: DataBlock | None) -> int | None:
    if last is None:
        return None
    if last.new_data is not None:
        return last.new_data.offset_interval.end
    return _data(reader.block_at(last.sequence_number)).prev_offset


def _data(block: Block) -> AddData | ExecuteTransform:
    assert isinstance(block.event, AddData | ExecuteTransform)
    return block.event


def _schema(reader: ChainReader, stop: int) -> DataSchema | None:
    block = reader.last_of(("SetDataSchema",), stop)
    if block is None:
        return None
    assert isinstance(block.event, SetDataSchema)
    return schema_of(block.event)


def _vocab(reader: ChainReader, stop: int) -> Vocab:
    block = reader.last_of(("SetVocab",), stop)
    if block is None:
        return Vocab()
    assert isinstance(block.event, SetVocab)
    return ChainState(set_vocab=block.event).vocab

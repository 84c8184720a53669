"""Computes the state of a chain at its head: all facts of its past that append rules, planners and readers need.

A ChainState is a value. ``advance`` adds one block in constant time; ``load_state`` makes the same value from a stored
chain with a number of reads that does not grow with its length. Blocks are trusted: the caller checks blocks of others
by ``chain.rules`` first. Spec: RFC-014, Metadata.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import ClassVar, Final, Protocol, get_args

import msgspec

from chain.ids import DatasetId
from chain.instant import Instant
from chain.model.block import Block, UnknownEvent
from chain.model.events import (
    AddData,
    AddPushSource,
    Checkpoint,
    DataEvent,
    DatasetKind,
    DisablePollingSource,
    DisablePushSource,
    ExecuteTransform,
    MetadataEvent,
    Seed,
    SetAttachments,
    SetDataSchema,
    SetInfo,
    SetLicense,
    SetPollingSource,
    SetTransform,
    SetVocab,
    SourceState,
    Vocab,
)
from chain.multihash import Multihash

_NO_SOURCES: Final[Mapping[str, AddPushSource]] = MappingProxyType({})


class InputPosition(msgspec.Struct, frozen=True):
    """The position up to which transactions have consumed one input."""

    block_hash: Multihash | None
    offset: int | None


class ChainState(msgspec.Struct, frozen=True, kw_only=True):
    EMPTY: ClassVar[ChainState]
    """The state before the first block."""

    dataset: DatasetId | None = None
    kind: DatasetKind | None = None
    head: Multihash | None = None
    sequence_number: int = -1
    """Number of the head, from zero; -1 for an empty chain."""
    system_time: Instant | None = None
    """System time of the head."""
    last_data: DataEvent | None = None
    last_transform: ExecuteTransform | None = None
    schema: SetDataSchema | None = None
    set_vocab: SetVocab | None = None
    set_transform: SetTransform | None = None
    set_polling_source: SetPollingSource | None = None
    """The newest polling source, disabled or not."""
    polling_disabled: bool = False
    push_sources: Mapping[str, AddPushSource] = _NO_SOURCES
    """The newest push source of each name, disabled or not."""
    disabled_push_sources: frozenset[str] = frozenset()
    set_info: SetInfo | None = None
    set_license: SetLicense | None = None
    set_attachments: SetAttachments | None = None
    unknown: Multihash | None = None
    """The newest block with an unknown event, of a newer schema: its effect on the state is not known."""
    unreadable: frozenset[str] = frozenset()
    """Names of event classes whose newest event has fields of a newer schema, so that its meaning is uncertain."""

    @property
    def size(self) -> int:
        """Number of blocks."""
        return self.sequence_number + 1

    @property
    def last_offset(self) -> int | None:
        """Offset of the last row; ``None`` before the first row."""
        if self.last_data is None:
            return None
        return self.last_data.new_data.offset_interval.end if self.last_data.new_data else self.last_data.prev_offset

    @property
    def next_offset(self) -> int:
        last = self.last_offset
        return 0 if last is None else last + 1

    @property
    def watermark(self) -> Instant | None:
        return self.last_data.new_watermark if self.last_data else None

    @property
    def checkpoint(self) -> Checkpoint | None:
        """Checkpoint of the last data event, which the next one has as ``prevCheckpoint``; ``None`` if it has none."""
        return self.last_data.new_checkpoint if self.last_data else None

    @property
    def source_state(self) -> SourceState | None:
        return self.last_data.new_source_state if isinstance(self.last_data, AddData) else None

    @property
    def vocab(self) -> Vocab:
        declared = self.set_vocab
        if declared is None:
            return Vocab()
        usual = Vocab()
        return Vocab(
            offset=declared.offset_column or usual.offset,
            operation_type=declared.operation_type_column or usual.operation_type,
            system_time=declared.system_time_column or usual.system_time,
            event_time=declared.event_time_column or usual.event_time,
        )

    @property
    def polling_source(self) -> SetPollingSource | None:
        return None if self.polling_disabled else self.set_polling_source

    @property
    def active_push_sources(self) -> dict[str, AddPushSource]:
        return {name: each for name, each in self.push_sources.items() if name not in self.disabled_push_sources}

    @property
    def input_positions(self) -> dict[DatasetId, InputPosition]:
        """Returns the position of each input after the last transaction."""
        if self.last_transform is None:
            return {}
        return {
            input_.dataset_id: InputPosition(
                input_.new_block_hash or input_.prev_block_hash,
                input_.prev_offset if input_.new_offset is None else input_.new_offset,
            )
            for input_ in self.last_transform.query_inputs
        }

    def may_hold(self, kind: type) -> bool:
        """Whether the current event of ``kind`` may be one that this version cannot fully read."""
        return self.unknown is not None or kind.__name__ in self.unreadable

    def advance(self, block: Block) -> ChainState:
        """Returns the state after ``block``, in constant time."""
        changes = self._changes(block)
        if self.unreadable and not isinstance(block.event, UnknownEvent):
            changes["unreadable"] = self.unreadable - {type(block.event).__name__}
        return msgspec.structs.replace(
            self, head=block.hash, sequence_number=block.sequence_number, system_time=block.system_time, **changes
        )

    def _changes(self, block: Block) -> dict[str, object]:
        event = block.event
        field = _LAST_OF.get(type(event))
        if field is not None:
            return {field: event}
        match event:
            case AddData() | ExecuteTransform():
                data: dict[str, object] = {"last_data": event}
                if isinstance(event, ExecuteTransform):
                    data["last_transform"] = event
                return data
            case Seed():
                return {"dataset": event.dataset_id, "kind": event.dataset_kind}
            case SetPollingSource():
                return {"set_polling_source": event, "polling_disabled": False}
            case DisablePollingSource():
                return {"polling_disabled": True}
            case AddPushSource():
                sources = MappingProxyType({**self.push_sources, event.source_name: event})
                return {
                    "push_sources": sources,
                    "disabled_push_sources": self.disabled_push_sources - {event.source_name},
                }
            case DisablePushSource():
                return {"disabled_push_sources": self.disabled_push_sources | {event.source_name}}
            case UnknownEvent(variant=variant):
                return self._unread(_KINDS.get(variant), block)
            case _:
                raise TypeError(f"no place in the state for {type(event).__name__}")

    def _unread(self, kind: type | None, block: Block) -> dict[str, object]:
        if kind is None:
            return {"unknown": block.hash}
        if kind is Seed:
            return {}  # Of Seeds only the first block's counts, and that it is one we can read is a rule.
        changes: dict[str, object] = {"unreadable": self.unreadable | {kind.__name__}}
        if (field := _LAST_OF.get(kind)) is not None:
            changes[field] = None
        elif kind is SetPollingSource:
            changes |= {"set_polling_source": None, "polling_disabled": False}
        elif kind is DisablePollingSource:
            changes["polling_disabled"] = True  # Even if the event has fields of a newer schema.
        return changes


_KINDS: Final = dict(enumerate(get_args(MetadataEvent), start=1))
_LAST_OF: Final[Mapping[type, str]] = {
    SetDataSchema: "schema",
    SetVocab: "set_vocab",
    SetTransform: "set_transform",
    SetInfo: "set_info",
    SetLicense: "set_license",
    SetAttachments: "set_attachments",
}
"""Events of which only the newest counts, with the field that holds it."""

_NEWEST: Final = (
    *((each.__name__,) for each in (*_LAST_OF, ExecuteTransform, UnknownEvent)),
    ("AddData", "ExecuteTransform"),
    ("SetPollingSource",),
    ("DisablePollingSource",),
)
_PUSH: Final = ("AddPushSource", "DisablePushSource")

ChainState.EMPTY = ChainState()


class _Head(Protocol):
    @property
    def sequence_number(self) -> int: ...


class StateReader(Protocol):
    """The reads of a stored chain that ``load_state`` needs; every ``ChainReader`` of the store provides them."""

    def head(self) -> _Head | None: ...

    def block_at(self, sequence_number: int) -> Block: ...

    def last_of(self, kinds: Iterable[str], before: int | None = None) -> Block | None: ...


def load_state(reader: StateReader, size: int | None = None) -> ChainState:
    """Loads the state at the head of a stored chain, or after its first ``size`` blocks; ``EMPTY`` without blocks.

    Reads the first block, the head, the newest block of each kind that counts and every definition of a push source,
    however long the chain is.
    """
    head = reader.head()
    end = 0 if head is None else head.sequence_number + 1 if size is None else min(size, head.sequence_number + 1)
    if end == 0:
        return ChainState.EMPTY
    wanted = {0: reader.block_at(0)}
    for block in _blocks_naming_source(reader, end):
        wanted[block.sequence_number] = block
    wanted[end - 1] = reader.block_at(end - 1)
    state = ChainState.EMPTY
    for number in sorted(wanted):
        state = state.advance(wanted[number])
    return state


def _blocks_naming_source(reader: StateReader, end: int) -> Iterator[Block]:
    for kinds in _NEWEST:
        newest = reader.last_of(kinds, end)
        if newest is not None:
            yield newest
    before = end
    while before > 0 and (block := reader.last_of(_PUSH, before)) is not None:
        yield block
        before = block.sequence_number


def transform_of(reader: StateReader) -> SetTransform | None:
    """Returns the newest transform of a stored chain, by one read; ``None`` without any. Raises Environment."""
    block = reader.last_of((SetTransform.__name__,))
    return block.event if block is not None and isinstance(block.event, SetTransform) else None

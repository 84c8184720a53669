"""Fixes the columns that a query sees of its inputs: those they had when the query was declared.

Otherwise the meaning of a ``select *`` would change between transactions. Everything is read from chains, so that a
replay finds the same. Spec: docs/spec/engine-semantics.md#classification, #evolution.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from chain.codec.arrow_schema import schema_of
from chain.ids import DatasetId
from chain.instant import Instant
from chain.model.block import Block
from chain.model.events import ExecuteTransform, SetDataSchema
from chain.model.schema import DataSchema
from chain.multihash import Multihash
from chain.state import StateReader
from chain.walk import first_where

_SCHEMA = ("SetDataSchema",)


@dataclass(frozen=True, slots=True)
class DeclaredTransform:
    """The declaration of the transform in force: its time, and how far its first transaction read each input."""

    time: Instant
    """System time of the declaring block."""
    cuts: Mapping[DatasetId, Multihash] = field(default_factory=dict)
    """Block up to which its first transaction consumed each input; empty before that transaction."""


def declared_at(reader: StateReader, size: int) -> DeclaredTransform | None:
    """Returns the transform declared in the first ``size`` blocks of an output; ``None`` without one."""
    declaring = reader.last_of(("SetTransform",), size)
    if declaring is None:
        return None
    first = first_where(reader, ("ExecuteTransform",), declaring.sequence_number + 1, size)
    return DeclaredTransform(declaring.system_time, _cuts(first) if first is not None else {})


def columns_known(reader: StateReader, stop: int, time: Instant) -> DataSchema | None:
    """Returns an input's schema as of ``time``, in its first ``stop`` blocks; if it had none, its first later one.

    Blocks that arrived after the first transaction may be older than the declaration, and were not known then: ``stop``
    excludes them. ``None`` without any schema.
    """
    newest = reader.last_of(_SCHEMA, stop)
    if newest is None or newest.system_time <= time:
        return _schema(newest)
    later = first_where(reader, _SCHEMA, 0, stop, lambda block: block.system_time > time)
    assert later is not None
    return _schema(reader.last_of(_SCHEMA, later.sequence_number) or later)


def _schema(block: Block | None) -> DataSchema | None:
    if block is None:
        return None
    assert isinstance(block.event, SetDataSchema)
    return schema_of(block.event)


def _cuts(block: Block) -> dict[DatasetId, Multihash]:
    assert isinstance(block.event, ExecuteTransform)
    cuts = ((input_.dataset_id, input_.new_block_hash or input_.prev_block_hash) for input_ in block.event.query_inputs)
    return {dataset: cut for dataset, cut in cuts if cut is not None}

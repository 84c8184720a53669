"""Determines from the chains which state the first transaction of a newly declared transform must migrate.

The engine rebuilds the new query's state from every block up to the cut, so a handover names all of them; that happens
once for each declaration. No record is needed: the transaction after a SetTransform is the handover, for the writer as
for every replay. Spec: docs/spec/engine-semantics.md#handover.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from chain.codec.arrow_schema import schema_of
from chain.ids import DatasetId
from chain.instant import Instant
from chain.model.events import SetTransform
from chain.state import ChainState, InputPosition, StateReader
from chain.store.base import ChainStore
from engines.contract import MigrateRequest, ValidateInput
from odfd.datasets.creation import is_same_query
from odfd.transform.evolution import DeclaredTransform, declared_at
from odfd.transform.inputs import consumed_blocks, view_input
from odfd.transform.plan import Blocked, Diverged, Handover, InputView, refuse_diverged
from odfd.transform.requests import bare_input, named_inputs

_START = InputPosition(None, None)


def is_redeclared(reader: StateReader, state: ChainState) -> bool:
    """Whether the current transform was declared after the last transaction."""
    last = reader.last_of(("ExecuteTransform", "SetTransform"), state.size)
    return state.last_transform is not None and last is not None and isinstance(last.event, SetTransform)


def handover_at(
    chains: ChainStore, reader: StateReader, state: ChainState, views: Iterable[InputView | Diverged]
) -> Handover | Blocked:
    """Determines what a newly declared transform migrates; ``views``: its inputs from their consumed positions."""
    last = reader.last_of(("ExecuteTransform",), state.size)
    assert last is not None
    assert state.set_transform is not None
    before = reader.last_of(("SetTransform",), last.sequence_number)
    declared = declared_at(reader, last.sequence_number + 1)
    assert before is not None
    assert declared is not None
    assert isinstance(before.event, SetTransform)
    former = former_views(chains, before.event, declared, state)
    if isinstance(former, Blocked):
        return former
    inputs = tuple(view for view in views if isinstance(view, InputView))
    if is_same_query(before.event, state.set_transform) and _columns(former) == _columns(inputs):
        return Handover(transform=before.event.transform, former=former, inputs=former, same_query=True)
    whole = tuple(
        msgspec.structs.replace(view, new=consumed_blocks(chains.chain(view.dataset), view.position), reopened=())
        for view in inputs
    )
    return Handover(transform=before.event.transform, former=former, inputs=whole)


def judgement(
    chains: ChainStore,
    state: ChainState,
    current: SetTransform,
    inputs: Sequence[ValidateInput],
    time: Instant,
    folder: Path,
) -> MigrateRequest | Blocked:
    """Builds the request that asks whether ``current``, over ``inputs`` at ``time``, could continue from the state.

    ``folder``: where files with columns are written for the engine, which reads no slices for this. Synchronous.
    """
    assert state.dataset is not None
    assert state.schema is not None
    reader = chains.chain(state.dataset)
    last = reader.last_of(("ExecuteTransform",), state.size)
    before = reader.last_of(("SetTransform",), last.sequence_number) if last is not None else None
    declared = declared_at(reader, last.sequence_number + 1) if last is not None else None
    following = tuple(bare_input(each, folder / f"next-{number}.parquet") for number, each in enumerate(inputs))
    old, former = current, following
    if before is not None and declared is not None:
        assert isinstance(before.event, SetTransform)
        found = former_views(chains, before.event, declared, state)
        if isinstance(found, Blocked):
            return found
        old, former = before.event, named_inputs(found, folder, "former")
    return MigrateRequest(
        dataset_id=state.dataset,
        system_time=time,
        vocab=state.vocab,
        old_transform=old.transform,
        old_inputs=former,
        transform=current.transform,
        query_inputs=following,
        output_schema=schema_of(state.schema),
        next_offset=state.next_offset,
        judge_only=True,
    )


def former_views(
    chains: ChainStore, current: SetTransform, declared: DeclaredTransform, state: ChainState
) -> tuple[InputView, ...] | Blocked:
    """Returns the inputs as a former transform knew them, at its last positions and without blocks."""
    positions = state.input_positions
    found = []
    for input_ in current.inputs:
        dataset = DatasetId.parse(input_.dataset_ref)
        position = positions.get(dataset, _START)
        alias = input_.alias or input_.dataset_ref
        if position.block_hash is None:
            continue
        chain = chains.chain(dataset)
        if chain.head() is None:
            return Blocked(f"{alias}, an input of the query so far, is not held here", f"odfctl mirror add {dataset}")
        view = view_input(chain, dataset, alias, position, position.block_hash, (), declared)
        if isinstance(view, Diverged):
            return refuse_diverged(view)
        found.append(view)
    return tuple(found)


def _columns(views: Iterable[InputView]) -> list[object]:
    return [(view.dataset, view.alias, view.schema) for view in views]

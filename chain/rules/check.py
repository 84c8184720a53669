"""Lists the append rules in order, and applies them to a block."""

from __future__ import annotations

import functools
from typing import Final

import numpy as np

from chain.model.block import Block
from chain.rules import events, offsets, schema, sources, structure, transform
from chain.rules.columns import Mask, Run
from chain.rules.rule import Binds, Rule, Violation
from chain.state import ChainState

RULES: Final[tuple[Rule, ...]] = (
    structure.FirstBlockIsSeed(),
    structure.OneSeed(),
    structure.LinksToHead(),
    structure.NumbersAreSequential(),
    structure.EventsAreKnown(),
    structure.SystemTimeIsMonotonic(),
    structure.SystemTimeIsInMilliseconds(),
    structure.WatermarkIsMonotonic(),
    offsets.SlicesAreContiguous(),
    offsets.IntervalsAreNotEmpty(),
    offsets.PrevOffsetIsLast(),
    events.DataEventIsNotEmpty(),
    events.AddDataAdvances(),
    events.PrevCheckpointIsLast(),
    events.CheckpointIsCarried(),
    events.KindFits(),
    events.DescriptionChanges(),
    events.HashesFitTheirObjects(),
    schema.SchemaBeforeData(),
    schema.SchemaIsSaid(),
    schema.SchemaChanges(),
    schema.SchemaStaysCompatible(),
    schema.SystemColumnsAreThere(),
    schema.ColumnsAreDistinct(),
    schema.ChangelogStays(),
    sources.OneFormOfSchema(),
    sources.LedgerIsNamed(),
    sources.NoPollingBesidePush(),
    sources.NoPushBesidePolling(),
    sources.PushSourceChanges(),
    sources.NoSourceAfterDisable(),
    sources.DisabledSourceExists(),
    transform.TransformHasInputs(),
    transform.InputsAreDistinct(),
    transform.InputsAreResolved(),
    transform.QueriesAreNormalised(),
    transform.QueriesExist(),
    transform.LastQueryIsOutput(),
    transform.OtherQueriesHaveAliases(),
    transform.TransformIsDeclared(),
    transform.InputsAreInOrder(),
    transform.InputBlocksAdvance(),
    transform.InputOffsetsAdvance(),
    transform.InputBlocksContinue(),
    transform.InputOffsetsContinue(),
    transform.InputOffsetsComeWithBlocks(),
    transform.TransformAdvances(),
)


def check_block(state: ChainState, block: Block, as_author: bool) -> list[Violation]:
    """All that forbids ``block`` after a chain in ``state``; empty when it may follow.

    ``as_author``: the block is being made here, so the rules that bind authors hold too. Costs in proportion to the
    block, never to the chain. That the block's hash is the one asked for, and that its objects exist, is not asked
    here: the block's hash is made from its bytes, and objects are the store's.
    """
    return [violation for rule in _rules_for(type(block.event), as_author) for violation in rule.check(state, block)]


def doubtful(run: Run) -> Mask:
    """Blocks of a run, ``(n,)``, that ``check_block`` has to look at; of all others it would find nothing as received.

    Costs in proportion to the run's bytes, and nothing per block but numpy's work.
    """
    run.read()
    doubts = np.zeros(run.size, np.bool_)
    for rule in _rules_for(type(run.event), False):
        doubts |= rule.doubts(run)
    return doubts | run.not_believed


@functools.cache
def _rules_for(event: type, as_author: bool) -> tuple[Rule, ...]:
    return tuple(
        rule
        for rule in RULES
        if (not rule.concerns or event in rule.concerns) and (as_author or rule.binds is Binds.EVERYONE)
    )

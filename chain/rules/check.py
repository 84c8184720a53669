"""Lists the append rules in order, and applies them to a block, or to a chain as it arrives."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Final, get_args

from chain.codec.blocks import decode_block
from chain.codec.shape import Bytes
from chain.errors import Invalid
from chain.libraries import np
from chain.model.block import Block, NamedObject, SealedBlock, UnknownEvent, objects_of
from chain.model.events import MetadataEvent
from chain.multihash import SHA3_256, Multihash
from chain.rules import events, schema, sources, structure, transform
from chain.rules.columns import Mask, Run
from chain.rules.pages import Page, PageRange, Pages
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
    structure.SlicesAreContiguous(),
    structure.IntervalsAreNotEmpty(),
    structure.PrevOffsetIsLast(),
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
    schema.SchemaIsBounded(),
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
_VARIANTS: Final = {event: number for number, event in enumerate(get_args(MetadataEvent), start=1)}
_SHA3: Final = Multihash.from_digest(SHA3_256, bytes(32))[:-32]


def check_block(state: ChainState, block: Block, as_author: bool) -> list[Violation]:
    """Lists the rules that ``block`` breaks after a chain in ``state``; empty when it may follow.

    ``as_author``: the block is being made here, so the rules that bind authors hold too. Costs in proportion to the
    block, never to the chain. Two things are not checked here: the block's hash, which is computed from its bytes, and
    the existence of its objects, which the store checks.
    """
    return [violation for rule in _rules_for(type(block.event), as_author) for violation in rule.check(state, block)]


def doubtful(run: Run) -> Mask:
    """Marks the blocks of a run, ``(n,)``, that ``check_block`` must check; in all others it would find nothing.

    For received blocks. Costs in proportion to the run's bytes, and nothing per block but numpy's work.
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


class ChainChecker:
    """Checks a stream of raw blocks by the rules and returns them sealed; decodes only where necessary.

    For blocks in bulk (import, a packed stream from a peer). Blocks that one writer made in a row are checked as
    columns, others one by one, with the same result. It has no access to files or peers, and does not check that a
    writer signed these blocks: the signed head shows that. Spec: Metadata Chain.
    """

    def __init__(self, state: ChainState) -> None:
        self.state = state
        self._pages = Pages()

    def take(self, raws: Sequence[bytes]) -> list[SealedBlock]:
        """Returns the next blocks, sealed. Raises Invalid for the first that breaks a rule; then takes none of them."""
        before = self.state
        page = self._pages.sort(None, raws)
        sealed: list[SealedBlock] = []
        try:
            for stretch in page.stretches:
                if stretch.groups:
                    self._take_run(page, raws, stretch, sealed)
                else:
                    sealed += [self._take(raw) for raw in raws[stretch.start : stretch.stop]]
        except Invalid:
            self.state = before
            raise
        return sealed

    def _take_run(self, page: Page, raws: Sequence[bytes], stretch: PageRange, sealed: list[SealedBlock]) -> None:
        run = page.run(stretch, self.state)
        mine, names, objects = raws[stretch.start : stretch.stop], _names(run.hashes.values), _objects(run)
        variant = _VARIANTS[type(run.event)]
        passed = 0
        for row in [*np.flatnonzero(doubtful(run)).tolist(), run.size]:
            if passed < row:
                heads = [self.state.head, *names[passed : row - 1]]
                numbers = range(self.state.size, self.state.size + row - passed)
                columns = zip(mine[passed:row], names[passed:row], heads, numbers, objects[passed:row], strict=True)
                sealed += [SealedBlock(raw, name, head, at, variant, named) for raw, name, head, at, named in columns]
                self.state = self.state.advance(decode_block(mine[row - 1]))
            if row < run.size:
                sealed.append(self._take(mine[row]))
            passed = row + 1

    def _take(self, raw: bytes) -> SealedBlock:
        block = decode_block(raw)
        for broken in check_block(self.state, block, as_author=False):
            raise Invalid(broken.message, rule=broken.rule, hint=broken.hint, place=f"block #{block.sequence_number}")
        self.state = self.state.advance(block)
        return seal(block)


def seal(block: Block) -> SealedBlock:
    """Returns a decoded block as a sealed one."""
    event = block.event
    variant = event.variant if isinstance(event, UnknownEvent) else _VARIANTS[type(event)]
    return SealedBlock(block.raw, block.hash, block.prev_block_hash, block.sequence_number, variant, objects_of(block))


def _names(digests: Bytes) -> list[Multihash]:
    """Returns the names of sha3-256 digests, ``(n, 32)``."""
    flat = np.concatenate(
        [np.broadcast_to(np.frombuffer(_SHA3, np.uint8), (len(digests), len(_SHA3))), digests], axis=1
    )
    return list(map(Multihash, flat.view(f"V{flat.shape[1]}").ravel().tolist()))


def _objects(run: Run) -> list[tuple[NamedObject, ...]]:
    """Returns the objects of each block of a run, like ``objects_of``; arbitrary if a name is not of sha3-256."""
    brought: list[tuple[NamedObject, ...]] = [()] * run.size
    for part in ("event.new_data", "event.new_checkpoint"):
        names, sizes = run.digests(f"{part}.physical_hash"), run.numbers(f"{part}.size")
        if names.present.any():
            named = zip(brought, names.present.tolist(), _names(names.values), sizes.values.tolist(), strict=True)
            brought = [(*known, (name, size)) if there else known for known, there, name, size in named]
    return brought

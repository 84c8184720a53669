"""Fetches the declared sources of others' root datasets, and signs whether the same rows are found there.

Works while ``run`` runs; a dataset is touched when it moves. The observer checks only the newest block of data, within
a day of its time: a source shows its latest state, so older blocks cannot be fetched any more. It retries a source that
is unreachable and skips one that is not open to everybody. Unlike heads and verdicts, observations are not journalled:
a later one of a block replaces the earlier, and two of them accuse nobody. Spec: docs/spec/trust.md#observations.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Final

import msgspec
import trio

from chain import instant
from chain.errors import Environment, Fault, Invalid, NotFound, Refused, Remote
from chain.ids import DatasetId
from chain.instant import Instant
from chain.model.block import Block
from chain.model.events import AddData, DatasetKind, DataSlice
from chain.multihash import Multihash
from chain.state import ChainState, load_state
from chain.statements import envelope, statement
from chain.statements.envelope import Signed
from chain.statements.statement import DECODED, FETCHED, Observation, Response, Result
from chain.store.base import ChainReader
from chain.store.objects import sound_path
from engines.output_check import operations
from odfd.ingest.driver import IngestDependencies
from odfd.ingest.fetch.source import ETAG, LAST_MODIFIED
from odfd.ingest.refetch import Refetched, refetch
from odfd.runtime.reconcile_loop import UNTIL_POKED, KeyedReconcileLoop
from odfd.runtime.slots import Slots
from odfd.runtime.subjects import about
from odfd.runtime.supervision import Life
from odfd.store.ledger.log import Ledger
from odfd.store.ledger.observations import Observations, Sighting
from odfd.transform.inputs import ChainPrefix, only_appends
from odfd.transform.replay import without_its_schema
from odfd.trust.judgement.observation_reach import DATA, WINDOW
from odfd.trust.signing.signer_context import SignerContext

RETRY_SECONDS: Final = 900.0
"""Seconds until the next try after a source could not be reached, or an engine could not do its work."""
TOGETHER: Final = 16
"""Sources that are fetched at a time."""
SLOW: Final = 128
"""Slow sources beside these; each occupies a connection, but holds up no other dataset."""
UNREACHABLE: Final[Result] = "unreachable"
_MAX_TAG: Final = 256


class ObserverSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings and dependencies besides the node's stores."""

    deps: IngestDependencies
    """The dependencies of ingest, as made by ``odfd.ingest.refetch.observing``."""
    wanted: Callable[[], bool]
    """Whether the policy in force asks to observe; called at each round."""


class Observer:
    """Observes the sources of root datasets for one node."""

    def __init__(self, signer: SignerContext, settings: ObserverSettings) -> None:
        self._signer = signer
        self._settings = settings
        self.deps = settings.deps
        self._closed: dict[DatasetId, Multihash] = {}
        """By dataset, the block whose source is not open to everybody."""
        self._nursery: trio.Nursery | None = None
        self._slots = Slots(TOGETHER, SLOW)
        self._looking: dict[DatasetId, bool] = {}
        """Datasets being observed, and whether each changed meanwhile."""
        self.loop = KeyedReconcileLoop[DatasetId](self._round)

    async def run(self, life: Life) -> None:
        """Runs until cancelled, which ends the fetch under way. A round does not wait for slow sources."""
        self._looking.clear()
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            await self.loop.run(life)
            nursery.cancel_scope.cancel()

    async def _round(self) -> float:
        touched = self.loop.take()
        if not self._settings.wanted():
            return UNTIL_POKED  # all is touched when the policy changes
        if touched is None:
            touched = set(await trio.to_thread.run_sync(self.deps.store.datasets))
        assert self._nursery is not None, "rounds run inside of run"
        for dataset in sorted(touched):
            if dataset in self._looking:
                self._looking[dataset] = True
            else:
                self._looking[dataset] = False
                self._nursery.start_soon(self._observe, dataset)
        return RETRY_SECONDS if self._looking else UNTIL_POKED

    async def _observe(self, dataset: DatasetId) -> None:
        async with self._slots.one():
            done = await self._attempt(dataset)
        if self._looking.pop(dataset):
            self.loop.touch(dataset)
        elif not done:
            self.loop.leave(dataset)

    async def _attempt(self, dataset: DatasetId) -> bool:
        try:
            return await self.observe(dataset)
        except (Environment, NotFound) as fault:
            self._put_off(dataset, fault)
            return False

    async def observe(self, dataset: DatasetId) -> bool:
        """Observes the newest block of data, if it is due. ``False``: another try may find more.

        Raises NotFound if a slice with which the rows are merged is not here, EngineFault, Environment.
        """
        due = await trio.to_thread.run_sync(self._due, dataset)
        if due is None:
            return True
        block, state = due
        try:
            found: Refetched | None = await refetch(self.deps, self._chain(dataset), state, block.system_time)
        except Remote as fault:
            self._put_off(dataset, fault)
            found = None
        except NotFound:
            raise
        except (Refused, Invalid) as fault:
            self._closed[dataset] = block.hash
            self._put_off(dataset, fault)
            return True
        result, response = result_of(block, found), None if found is None else _response(found)
        signed = await trio.to_thread.run_sync(self._sign, dataset, block, result, response)
        if signed is not None:
            self._tell(dataset, block, signed, result)
        return found is not None

    def note(self, dataset: DatasetId, block: Block, *, is_same: bool, seen: bytes) -> bool:
        """Signs an auditor's finding on a block of a portal, from a worker thread; returns whether it is news.

        ``seen``: the block's statement of its private input. Only its hash is published, and no row.
        """
        result: Result = "same-rows" if is_same else "differs"
        response = Response(sha256=hashlib.sha256(seen).hexdigest(), size=len(seen))
        return self._note(dataset, block, result, response)

    def note_decoded(self, dataset: DatasetId, block: Block, *, is_same: bool, seen: Response) -> bool:
        """Signs what bytes that the publisher kept are decoded to, from a worker thread; returns whether it is news.

        ``seen``: the bytes. What this node fetched from the source itself says more, and stays.
        """
        return self._note(dataset, block, "decoded" if is_same else "decodes-otherwise", seen)

    def _note(self, dataset: DatasetId, block: Block, result: Result, response: Response) -> bool:
        signed = self._sign(dataset, block, result, response)
        if signed is not None:
            trio.from_thread.run_sync(self._tell, dataset, block, signed, result)
        return signed is not None

    def _tell(self, dataset: DatasetId, block: Block, signed: Signed, result: Result) -> None:
        self._signer.announce(dataset, signed)
        self._signer.events.emit(
            "observation.signed",
            self._signer.name_of(dataset),
            f"#{block.sequence_number} {result}",
            about=about(dataset),
            block=block.sequence_number,
            result=result,
        )

    def _chain(self, dataset: DatasetId) -> ChainReader:
        return self.deps.store.chain(dataset)

    def _put_off(self, dataset: DatasetId, fault: Fault) -> None:
        self._signer.logger.info("source not observed", dataset=self._signer.name_of(dataset), reason=str(fault))

    def _due(self, dataset: DatasetId) -> tuple[Block, ChainState] | None:
        """Returns the newest block of data and the state before it, if it is recent,
        complete here and not observed yet."""
        if self._signer.keys.has_dataset_key(dataset):
            return None
        chain = self._chain(dataset)
        block = chain.last_of(DATA)
        if block is None or self._closed.get(dataset) == block.hash or not self._is_young(block):
            return None
        assert isinstance(block.event, AddData)
        with self._signer.database.read() as connection:
            whole = Ledger(connection).chain(dataset).data > block.sequence_number
            mine = self._mine(Observations(connection), dataset, block)
        if block.event.new_data is None or not whole or (mine is not None and mine.result in FETCHED):
            return None
        state = load_state(ChainPrefix(chain, block.sequence_number))
        if state.last_offset is None:
            state = without_its_schema(state, block, chain)
        if state.kind is not DatasetKind.ROOT or state.polling_source is None:
            return None
        return None if self._is_by_hand(state, block.event.new_data) else (block, state)

    def _is_by_hand(self, state: ChainState, slice_: DataSlice) -> bool:
        """Whether the owner corrected a row by hand, so that it is not from the source.
        Raises ObjectDamaged, NotFound."""
        if not only_appends(state):
            return False
        written = operations(sound_path(self.deps.objects, slice_.physical_hash), state.vocab.operation_type)
        return written.append < sum(written)

    def _is_young(self, block: Block) -> bool:
        return block.system_time <= self._signer.clock.now() <= block.system_time + WINDOW

    def _mine(self, kept: Observations, dataset: DatasetId, block: Block) -> Sighting | None:
        me = self._signer.verdict_key.did
        sightings = kept.at(dataset, block.sequence_number)
        return next(
            (sighting for sighting in sightings if sighting.observer == me and sighting.block == block.hash), None
        )

    def _sign(self, dataset: DatasetId, block: Block, result: Result, response: Response | None) -> Signed | None:
        """Signs an observation; ``None`` if the same was said already, or the chain got another history meanwhile."""
        key, now = self._signer.verdict_key, self._signer.clock.now()
        with self._signer.database.write() as connection:
            kept, checked = Observations(connection), Ledger(connection).chain(dataset)
            here = next(self._chain(dataset).raw_blocks(block.sequence_number, block.sequence_number + 1), None)
            mine = self._mine(kept, dataset, block)
            said = None if mine is None else mine.result
            if here != block.raw or said == result or (result in DECODED and said in FETCHED):
                return None
            # Times in statements are whole seconds, and of two statements of one second neither replaces the other.
            at = now if mine is None else max(now, Instant(mine.at + instant.SECOND))
            observation = Observation(
                observer=key.did,
                dataset=dataset,
                epoch=checked.epoch,
                sequence_number=block.sequence_number,
                result=result,
                response=response,
                at=statement.when(at),
                head=block.hash,
            )
            signed = envelope.unseal(envelope.seal(statement.encode(observation), key), observation.MAX_ENVELOPE)
            if not kept.is_news(observation, signed.sid):
                return None
            kept.keep(observation, signed, "signed", "", now)
        return signed


def result_of(block: Block, found: Refetched | None) -> Result:
    """Compares rows; equal bytes are reported too if the source's own strong tag shows them."""
    event = block.event
    assert isinstance(event, AddData)
    if found is None:
        return UNREACHABLE
    published, rows = event.new_data, found.rows
    if published is None or rows is None:
        return "differs"
    ours = (rows.logical_hash, rows.offsets, rows.watermark)
    if ours != (published.logical_hash, published.offset_interval, event.new_watermark):
        return "differs"
    tag = found.state if found.state is not None and found.state.kind == ETAG else None
    # A weak tag says that the content means the same, and not that the bytes are equal (RFC 9110, section 8.8.1).
    same = tag is not None and not tag.value.startswith("W/") and tag == event.new_source_state
    return "same-bytes" if same else "same-rows"


def _response(found: Refetched) -> Response:
    state = found.state
    tag = state.value if state is not None and state.kind == ETAG and len(state.value) <= _MAX_TAG else None
    modified = state.value if state is not None and state.kind == LAST_MODIFIED else None
    return Response(sha256=found.sha256, size=found.size, etag=tag, last_modified=modified)

"""One pass over a chain, oldest block first, that reports every independent failure it can reach.

Blocks are hashed, decoded, linked and judged by the append rules on the calling thread; objects are checked beside it
by a small pool with a bounded queue. After a block that cannot be read, what depends on it (rules, schema in force) is
not judged any more, since every answer would only repeat the one failure; hashes, links and objects still are.
Synchronous, no daemon, no clock: works on a store and on a folder alike.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

import msgspec

from chain.codec.blocks import decode_block
from chain.errors import Invalid, NotFound
from chain.model.block import Block
from chain.model.events import AddData, ExecuteTransform, SetDataSchema, SetVocab
from chain.model.schema import DataSchema
from chain.multihash import Multihash
from chain.rules.check import check_block
from chain.state import ChainState, Vocab
from chain.store.base import ObjectReader, StoredBlock, StoredChain
from odfd.verify.objects import SliceClaim, check_checkpoint, check_slice
from odfd.verify.report import (
    BlockRef,
    Checked,
    Failure,
    Finding,
    Level,
    OnProgress,
    Progress,
    Verification,
)

_WORKERS: Final = min(4, os.cpu_count() or 1)
_QUEUE: Final = 4
"""Objects waiting for each worker."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What to verify, and how deep."""

    ref: str
    """As the person named it; goes into the answer."""
    level: Level = Level.DATA
    start: int = 0
    """Sequence number from which on failures are looked for and objects read."""
    workers: int = _WORKERS


def verify_chain(
    chain: StoredChain, objects: ObjectReader, request: Request, progress: OnProgress | None = None
) -> Verification:
    """Raises NotFound when there is no chain or no block ``start``, Environment when our own disk fails."""
    head = chain.stored_head()
    size = chain.stored_size()
    if head is None or size == 0:
        raise NotFound(f"{request.ref} has no blocks", rule="chain-empty")
    if request.start >= size:
        raise NotFound(
            f"{request.ref} has no block #{request.start}", rule="block-unknown", hint=f"its head is #{size - 1}"
        )
    with ThreadPoolExecutor(request.workers, thread_name_prefix="verify") as pool:
        run = _Run(request, size, progress or (lambda _: None), _ObjectQueue(pool, objects, request.workers))
        try:
            for stored in chain.stored_blocks():
                run.take(stored)
            run.finish()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return run.answer(head)


class _ObjectQueue:
    """Object checks in flight: at most a few for each worker, taken back in the order of the chain."""

    def __init__(self, pool: ThreadPoolExecutor, objects: ObjectReader, workers: int) -> None:
        self._pool = pool
        self._objects = objects
        self._limit = workers * (_QUEUE + 1)
        self._waiting: deque[tuple[BlockRef, int, Future[list[Finding]]]] = deque()
        self.known = self.known_bytes = 0
        self.done = self.done_bytes = 0

    def add(self, block: BlockRef, size: int, check: Callable[[ObjectReader], list[Finding]]) -> None:
        self.known += 1
        self.known_bytes += size
        self._waiting.append((block, size, self._pool.submit(check, self._objects)))

    def take(self, all_of_them: bool) -> list[tuple[BlockRef, list[Finding]]]:
        """What is done; waits when the queue is full, or for everything at the end."""
        results = []
        while self._waiting and (all_of_them or len(self._waiting) > self._limit or self._waiting[0][2].done()):
            block, size, future = self._waiting.popleft()
            results.append((block, future.result()))
            self.done += 1
            self.done_bytes += size
            if all_of_them:
                break
        return results


class _Run:
    """One verification: the state of the fold and what it found so far."""

    def __init__(self, request: Request, size: int, progress: OnProgress, queue: _ObjectQueue) -> None:
        self._request = request
        self._size = size
        self._progress = progress
        self._queue = queue
        self._state: ChainState | None = ChainState.EMPTY
        self._previous: Multihash | None = None
        self._next = 0
        self._schema: DataSchema | None = None
        self._vocab: Vocab | None = Vocab()
        self._dataset = ""
        self._blocks = self._slices = 0
        self._failures: list[Failure] = []

    def take(self, stored: StoredBlock) -> None:
        ref = BlockRef(str(stored.name), stored.sequence_number)
        if stored.sequence_number > self._next:
            message = f"blocks #{self._next} to #{stored.sequence_number - 1} cannot be reached"
            self._fail(ref, Finding(rule="block-missing", message=message))
            self._lose_track()
        block = self._read(stored, ref)
        if block is None:
            self._lose_track()
        else:
            self._judge(ref, block)
        self._previous = stored.name
        self._next = stored.sequence_number + 1
        if stored.sequence_number >= self._request.start:
            self._blocks += 1
        self._collect(all_of_them=False)

    def finish(self) -> None:
        while self._queue.done < self._queue.known:
            self._collect(all_of_them=True)

    def answer(self, head: Multihash) -> Verification:
        self._failures.sort(key=lambda failure: failure.block.sequence_number)
        return Verification(
            ref=self._request.ref,
            dataset_id=self._dataset,
            head=str(head),
            blocks=self._size,
            level=self._request.level.value,
            ok=not self._failures,
            checked=Checked(blocks=self._blocks, slices=self._slices, bytes=self._queue.done_bytes),
            failures=tuple(self._failures),
        )

    def _read(self, stored: StoredBlock, ref: BlockRef) -> Block | None:
        if stored.raw is None:
            message = f"block #{ref.sequence_number} is missing"
            self._fail(ref, Finding(rule="block-missing", message=message, expected=ref.hash))
            return None
        actual = Multihash.sha3_256(stored.raw)
        if actual != stored.name:
            message = f"the bytes of block #{ref.sequence_number} hash to {actual.short}"
            self._fail(ref, Finding(rule="block-hash", message=message, expected=ref.hash, actual=str(actual)))
            return None
        try:
            return decode_block(stored.raw)
        except Invalid as error:
            self._fail(ref, Finding(rule=error.rule or "block-encoding", message=str(error)))
            return None

    def _judge(self, ref: BlockRef, block: Block) -> None:
        if self._state is None:
            self._check_link(ref, block)
        else:
            for broken in check_block(self._state, block, as_author=False):
                self._fail(
                    ref,
                    Finding(rule=broken.rule, message=broken.message, expected=broken.expected, actual=broken.actual),
                )
            self._state = self._state.advance(block)
            self._dataset = str(self._state.dataset or "")
        if isinstance(block.event, SetDataSchema):
            self._schema = block.event.schema
        elif isinstance(block.event, SetVocab):
            self._vocab = ChainState.EMPTY.advance(block).vocab
        elif isinstance(block.event, AddData | ExecuteTransform) and self._request.level is Level.DATA:
            self._check_objects(ref, block, block.event)

    def _check_link(self, ref: BlockRef, block: Block) -> None:
        """All that can be told without the state: that the block names its neighbour and stands in its place."""
        if self._previous is not None and block.prev_block_hash != self._previous:
            actual = str(block.prev_block_hash or "none")
            message = "the block does not name the one before it"
            self._fail(
                ref, Finding(rule="prev-block-link", message=message, expected=str(self._previous), actual=actual)
            )
        if block.sequence_number != ref.sequence_number:
            expected, actual = str(ref.sequence_number), str(block.sequence_number)
            message = f"the block says it is #{actual} and stands at #{expected}"
            self._fail(ref, Finding(rule="sequence-number", message=message, expected=expected, actual=actual))

    def _check_objects(self, ref: BlockRef, block: Block, event: AddData | ExecuteTransform) -> None:
        if ref.sequence_number < self._request.start:
            return
        if (slice_ := event.new_data) is not None:
            claim = SliceClaim(
                slice=slice_,
                schema=self._schema,
                vocab=self._vocab,
                system_time=block.system_time,
            )
            self._slices += 1
            self._queue.add(ref, slice_.size, lambda objects: check_slice(objects, claim))
        if (checkpoint := event.new_checkpoint) is not None:
            name, size = checkpoint.physical_hash, checkpoint.size
            self._queue.add(ref, size, lambda objects: check_checkpoint(objects, name, size))

    def _lose_track(self) -> None:
        self._state = self._schema = self._vocab = None

    def _collect(self, all_of_them: bool) -> None:
        for ref, findings in self._queue.take(all_of_them):
            for finding in findings:
                self._fail(ref, finding)
        self._progress(
            Progress(
                blocks=self._next,
                blocks_total=self._size,
                objects=self._queue.done,
                objects_known=self._queue.known,
                bytes=self._queue.done_bytes,
                bytes_known=self._queue.known_bytes,
                failures=len(self._failures),
            )
        )

    def _fail(self, ref: BlockRef, finding: Finding) -> None:
        if ref.sequence_number >= self._request.start:
            self._failures.append(
                Failure(
                    block=ref,
                    rule=finding.rule,
                    message=finding.message,
                    expected=finding.expected,
                    actual=finding.actual,
                )
            )

"""Verifies one dataset: that its chain is consistent, and that its objects match the chain.

Goes along the chain, oldest block first, and reports every independent failure. Works on a store and on a folder alike.
Blocks come in pages. Blocks that one writer made in a row are hashed, compared with their shape and checked as columns
(``chain.rules.pages``); doubtful and different ones are decoded and checked alone, on the calling thread. A small pool
with a bounded queue checks objects meanwhile. After an unreadable block the checks that depend on it (rules, schema in
force) are skipped, since they would only repeat the one failure; hashes, links and objects are still checked. Rows of a
portal are checked against its rule. Made for one verification.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Final, NamedTuple, cast

import msgspec

from chain.codec.blocks import decode_block
from chain.errors import Invalid, NotFound
from chain.libraries import np
from chain.model.block import Block
from chain.model.events import AddData, ExecuteTransform
from chain.model.portal import described
from chain.multihash import SHA3_256, Multihash
from chain.rules.check import check_block, doubtful
from chain.rules.columns import Mask
from chain.rules.pages import Page, PageRange, Pages
from chain.state import ChainState
from chain.store.base import NAME_SIZE, ObjectReader, StoredChain, StoredPage
from chain.store.schema import kind_number
from chain.walk import KindIndex
from odfd.portals.recheck import broken_blocks, rule_at
from odfd.store.resume import Memory, Remembered
from odfd.verify.objects import SliceClaim, check_checkpoint, check_object, check_slice
from odfd.verify.report import (
    BlockRef,
    CheckedDataset,
    Level,
    OnProgress,
    Progress,
    VerificationRequest,
    VerificationResult,
    VerifyFailure,
    VerifyFinding,
)
from odfd.verify.terms import ChainTerms

_WAITING: Final = 4
"""Most objects that wait for each worker."""


class ObjectQueue:
    """The queue of one verification, used from its thread only."""

    def __init__(self, pool: Executor, objects: ObjectReader, workers: int) -> None:
        self._pool = pool
        self._objects = objects
        self._limit = workers * (_WAITING + 1)
        self._waiting: deque[tuple[BlockRef, int, Future[list[VerifyFinding]]]] = deque()
        self.known = self.known_bytes = 0
        self.done = self.done_bytes = 0
        self._done: BlockRef | None = None

    def add(self, block: BlockRef, size: int, check: Callable[[ObjectReader], list[VerifyFinding]]) -> None:
        """Adds a check; ``size``: bytes that it will read, as its block states."""
        self.known += 1
        self.known_bytes += size
        self._waiting.append((block, size, self._pool.submit(check, self._objects)))

    def take(self, all_of_them: bool) -> list[tuple[BlockRef, list[VerifyFinding]]]:
        """Returns the results of finished checks; waits if the queue is full, or for everything at the end."""
        results = []
        while self._waiting and (all_of_them or len(self._waiting) > self._limit or self._waiting[0][2].done()):
            block, size, future = self._waiting.popleft()
            results.append((block, future.result()))
            self.done += 1
            self._done = block
            self.done_bytes += size
            if all_of_them:
                break
        return results

    @property
    def last(self) -> BlockRef | None:
        """The last block up to which all added objects are checked; ``None`` if there is none."""
        if self._waiting and self._waiting[0][0] == self._done:
            return None
        return self._done


class PortalCheck(NamedTuple):
    """The result of a check: the rule that was checked, in words, and the rows that break it."""

    told: str = ""
    failures: tuple[VerifyFailure, ...] = ()


def check_portal(chain: StoredChain, objects: ObjectReader, request: VerificationRequest, size: int) -> PortalCheck:
    """Checks a chain that is otherwise valid; checks nothing if it is no portal, or is not here as a whole."""
    if request.level is not Level.DATA or request.start or request.held_from or request.held_until < size:
        return PortalCheck()
    blocks = cast(KindIndex, chain)  # chains of stores and folders all are
    try:
        rule = rule_at(blocks, size)
    except Invalid as fault:
        said = blocks.last_of(("SetDataSchema",), size)
        assert said is not None, "its rule was read"
        return PortalCheck("", (_failure(said, fault.rule, fault.message),))
    if rule is None:
        return PortalCheck()
    broken = broken_blocks(blocks, objects, size)
    return PortalCheck(
        described(rule), tuple(_failure(each.block, each.breach.rule, each.breach.message) for each in broken)
    )


def _failure(block: Block, rule: str, message: str) -> VerifyFailure:
    return VerifyFailure(block=BlockRef(str(block.hash), block.sequence_number), rule=rule, message=message)


_SHA3: Final = Multihash.from_digest(SHA3_256, bytes(32))[:2]
_KEEP_EVERY: Final = 256 << 20
"""Bytes of objects after which the progress is recorded, in case the verification is interrupted."""


class Fold:
    """One verification: the state along the chain and the findings so far."""

    def __init__(
        self,
        request: VerificationRequest,
        size: int,
        queue: ObjectQueue,
        progress: OnProgress,
        memory: Memory | None,
        remembered: Remembered,
    ) -> None:
        self._request = request
        self._size = size
        self._progress = progress
        self._queue = queue
        self._memory = memory
        self._remembered = remembered
        self._kept_bytes = 0
        self._pages = Pages()
        self._state: ChainState | None = ChainState.EMPTY
        self._previous: Multihash | None = None
        self._next = 0
        self._terms = ChainTerms.of(ChainState.EMPTY)
        self._dataset = ""
        self._blocks = self._slices = self._spared = self._unheld = self._to_come = 0
        self._failures: list[VerifyFailure] = []

    def take_page(self, page: StoredPage) -> None:
        names = np.frombuffer(page.names, np.uint8).reshape(-1, NAME_SIZE)
        plain = self._request.columns and self._state is not None and page.start == self._next
        if not plain or (names[:, :2] != np.frombuffer(_SHA3, np.uint8)).any():
            self._one_by_one(page, 0, len(page.raws))
            return
        sorted_ = self._pages.sort(names[:, 2:], page.raws)
        for stretch in sorted_.stretches:
            if stretch.groups and self._state is not None:
                self._take_run(page, sorted_, stretch, self._state)
            else:
                self._one_by_one(page, stretch.start, stretch.stop)

    def _one_by_one(self, page: StoredPage, start: int, stop: int) -> None:
        for row in range(start, stop):
            self._take(page, row)

    def _take_run(self, page: StoredPage, sorted_: Page, stretch: PageRange, state: ChainState) -> None:
        """Passes blocks without doubts, and takes doubtful ones one by one, in the order of the chain."""
        run = sorted_.run(stretch, state)
        doubts = doubtful(run)
        if page.kinds is not None:
            doubts |= np.array(page.kinds[stretch.start : stretch.stop]) != kind_number(run.event)
        objects = run.has("event.new_data") | run.has("event.new_checkpoint")
        passed = stretch.start
        for row in (np.flatnonzero(doubts) + stretch.start).tolist():
            self._pass(page, passed, row, objects[passed - stretch.start :])
            self._one_by_one(page, row, row + 1)
            passed = row + 1
            if self._state is None:
                self._one_by_one(page, passed, stretch.stop)
                return
        self._pass(page, passed, stretch.stop, objects[passed - stretch.start :])

    def _pass(self, page: StoredPage, start: int, stop: int, objects: Mask) -> None:
        """Processes data events that satisfy every rule; ``objects`` marks, from ``start`` on, those with objects."""
        if start == stop:
            return
        assert self._state is not None, "runs are judged against a state"
        if self._request.level is Level.DATA:
            for row in (np.flatnonzero(objects[: stop - start]) + start).tolist():
                block = decode_block(_bytes(page, row))
                self._check_objects(BlockRef(str(page.name(row)), page.start + row), block)
        self._state = self._state.advance(decode_block(_bytes(page, stop - 1)))
        self._previous = self._state.head
        self._blocks += max(0, page.start + stop - max(self._next, self._request.start))
        self._next = page.start + stop
        self._collect(all_of_them=False)

    def _take(self, page: StoredPage, row: int) -> None:
        name = page.name(row)
        ref = BlockRef(str(name), page.start + row)
        if ref.sequence_number > self._next:
            message = f"blocks #{self._next} to #{ref.sequence_number - 1} cannot be reached"
            self._fail(ref, VerifyFinding(rule="block-missing", message=message))
            self._lose_track()
        block = self._read(page.raws[row], name, ref)
        if block is None:
            self._lose_track()
        else:
            self._judge(ref, block)
            self._check_kind(ref, block, page.kind(row))
        self._previous = name
        self._next = ref.sequence_number + 1
        self._blocks += ref.sequence_number >= self._request.start
        self._collect(all_of_them=False)

    def finish(self, head: Multihash) -> None:
        """Waits for the objects, and checks that the chain ends where its store states."""
        while self._queue.done < self._queue.known:
            self._collect(all_of_them=True)
        if self._previous != head or self._next != self._size:
            ref = BlockRef(str(head), self._size - 1)
            actual = f"#{self._next - 1} {self._previous.short if self._previous else 'none'}"
            message = "the head is not the last block that is stored"
            expected = f"#{self._size - 1} {head.short}"
            self._fail(ref, VerifyFinding(rule="chain-head", message=message, expected=expected, actual=actual))
        self._remember(complete=True)

    def answer(self, head: Multihash) -> VerificationResult:
        self._failures.sort(key=lambda failure: failure.block.sequence_number)
        return VerificationResult(
            ref=self._request.ref,
            dataset_id=self._dataset,
            head=str(head),
            blocks=self._size,
            level=self._request.level.value,
            ok=not self._failures,
            checked=CheckedDataset(
                blocks=self._blocks,
                slices=self._slices,
                bytes=self._queue.done_bytes,
                remembered=self._spared,
                not_held=self._unheld,
                to_come=self._to_come,
            ),
            failures=tuple(self._failures),
        )

    def _read(self, raw: bytes | None, name: Multihash, ref: BlockRef) -> Block | None:
        if raw is None:
            message = f"block #{ref.sequence_number} is missing"
            self._fail(ref, VerifyFinding(rule="block-missing", message=message, expected=ref.hash))
            return None
        actual = Multihash.sha3_256(raw)
        if actual != name:
            message = f"the bytes of block #{ref.sequence_number} hash to {actual.short}"
            self._fail(ref, VerifyFinding(rule="block-hash", message=message, expected=ref.hash, actual=str(actual)))
            return None
        try:
            return decode_block(raw)
        except Invalid as error:
            self._fail(ref, VerifyFinding(rule=error.rule or "block-encoding", message=str(error)))
            return None

    def _judge(self, ref: BlockRef, block: Block) -> None:
        if self._state is None:
            self._check_link(ref, block)
        else:
            for broken in check_block(self._state, block, as_author=False):
                self._fail(
                    ref,
                    VerifyFinding(
                        rule=broken.rule, message=broken.message, expected=broken.expected, actual=broken.actual
                    ),
                )
            self._state = self._state.advance(block)
            self._dataset = str(self._state.dataset or "")
        self._terms = self._terms.after(block)
        if self._request.level is Level.DATA:
            self._check_objects(ref, block)

    def _check_link(self, ref: BlockRef, block: Block) -> None:
        """Checks what needs no state: that the block names its predecessor and is in its place."""
        if self._previous is not None and block.prev_block_hash != self._previous:
            actual = str(block.prev_block_hash or "none")
            message = "the block does not name the one before it"
            self._fail(
                ref, VerifyFinding(rule="prev-block-link", message=message, expected=str(self._previous), actual=actual)
            )
        if block.sequence_number != ref.sequence_number:
            expected, actual = str(ref.sequence_number), str(block.sequence_number)
            message = f"the block says it is #{actual} and is at #{expected}"
            self._fail(ref, VerifyFinding(rule="sequence-number", message=message, expected=expected, actual=actual))

    def _check_kind(self, ref: BlockRef, block: Block, kind: int | None) -> None:
        """Checks the store's index by kind, as planners would otherwise see another past."""
        if kind is not None and kind != (actual := kind_number(block.event)):
            message = f"the store's index takes it for an event of kind {kind}"
            self._fail(ref, VerifyFinding(rule="block-index", message=message, expected=str(actual), actual=str(kind)))

    def _check_objects(self, ref: BlockRef, block: Block) -> None:
        event = block.event
        if ref.sequence_number < self._request.start or not isinstance(event, AddData | ExecuteTransform):
            return
        number = ref.sequence_number
        slice_, checkpoint = event.new_data, event.new_checkpoint
        if number < self._request.held_from:
            self._unheld += slice_ is not None
            return
        if number >= self._request.held_until:
            self._to_come += slice_ is not None
            return
        self._slices += slice_ is not None
        self._spared += number < self._remembered.rows
        if number < self._remembered.done:
            return
        if slice_ is not None:
            claim = SliceClaim(slice=slice_, terms=self._terms, system_time=block.system_time)
            name, size = slice_.physical_hash, slice_.size
            if number < self._remembered.rows:
                self._queue.add(ref, size, lambda objects: check_object(objects, "slice", name, size))
            else:
                self._queue.add(ref, size, lambda objects: check_slice(objects, claim))
        if checkpoint is not None:
            state, length = checkpoint.physical_hash, checkpoint.size
            self._queue.add(ref, length, lambda objects: check_checkpoint(objects, state, length))

    def _remember(self, complete: bool) -> None:
        """Records how far everything is correct; nothing after a failure, or if the first blocks were not checked."""
        request = self._request
        if (
            self._memory is None
            or self._failures
            or max(request.start, request.held_from) > self._remembered.rows
            or request.level is not Level.DATA
            or request.held_until < self._size
        ):
            return
        if complete and self._previous is not None:
            self._memory.keep(self._next, self._previous, complete=True)
        elif (last := self._queue.last) is not None and last.sequence_number >= self._remembered.rows:
            self._memory.keep(last.sequence_number + 1, Multihash.parse(last.hash), complete=False)

    def _lose_track(self) -> None:
        self._state, self._terms = None, ChainTerms()

    def _collect(self, all_of_them: bool) -> None:
        for ref, findings in self._queue.take(all_of_them):
            for finding in findings:
                self._fail(ref, finding)
        if self._queue.done_bytes - self._kept_bytes >= _KEEP_EVERY:
            self._kept_bytes = self._queue.done_bytes
            self._remember(complete=False)
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

    def _fail(self, ref: BlockRef, finding: VerifyFinding) -> None:
        if ref.sequence_number >= self._request.start:
            self._failures.append(
                VerifyFailure(
                    block=ref,
                    rule=finding.rule,
                    message=finding.message,
                    expected=finding.expected,
                    actual=finding.actual,
                )
            )


def _bytes(page: StoredPage, row: int) -> bytes:
    raw = page.raws[row]
    assert raw is not None, "blocks of a run are there"
    return raw


__all__ = ["VerificationRequest", "verify_chain"]


def verify_chain(
    chain: StoredChain,
    objects: ObjectReader,
    request: VerificationRequest,
    progress: OnProgress | None = None,
    memory: Memory | None = None,
) -> VerificationResult:
    """Verifies a chain up to the head that it has at the start, however far it grows meanwhile.

    Raises NotFound when there is no chain or no block ``start``, Environment when our own disk fails. Failures of a
    chain that is rewritten meanwhile mean nothing: the caller compares its history afterwards. ``memory`` provides
    results of earlier verifications and records new ones; without it nothing is recorded.
    """
    snapshot = chain.snapshot()
    if snapshot is None:
        raise NotFound(f"{request.ref} has no blocks", rule="chain-empty")
    head, size = snapshot.head.hash, snapshot.head.size
    if request.start >= size:
        raise NotFound(
            f"{request.ref} has no block #{request.start}", rule="block-unknown", hint=f"its head is #{size - 1}"
        )
    remembered = memory.recall(chain) if memory is not None and request.level is Level.DATA else Remembered()
    with ThreadPoolExecutor(request.workers, thread_name_prefix="verify") as pool:
        queue = ObjectQueue(pool, objects, request.workers)
        fold = Fold(request, size, queue, progress or (lambda _: None), memory, remembered)
        try:
            for page in chain.stored_pages(0, size):
                fold.take_page(page)
            fold.finish(head)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    found = fold.answer(head)
    if not found.ok:
        return found
    portal = check_portal(chain, objects, request, size)
    checked = msgspec.structs.replace(found.checked, portal=portal.told)
    return msgspec.structs.replace(found, ok=not portal.failures, checked=checked, failures=portal.failures)

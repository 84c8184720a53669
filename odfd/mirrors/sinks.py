"""Receives blocks and objects from peers: checks blocks as they arrive, and collects objects in partial files.

Implements ``p2p.ports.ChainSink`` and ``ObjectSink``; called from worker threads, one call at a time.

``Spool`` writes a file that grows as bytes arrive, keeping all but the beginning of a large one out of the page cache.
A mirror of a dataset larger than memory would displace everything else from the page cache; and copying bytes into it
costs as much as decrypting them, or four times that into fresh pages. So the bytes after the first 8 MiB are collected
in one of two buffers, and a full one is written to the disk (``O_DIRECT``) while the other fills; on a file system
without ``O_DIRECT`` it is written normally. Made by ``PartialObject``, which uses it from one thread at a time.

All methods raise Environment if the disk fails, perhaps for data appended earlier. After that only ``close`` may be
called, and the file on disk is a beginning of the appended data.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from mmap import PAGESIZE, mmap
from pathlib import Path
from typing import Any, Final

from chain.errors import Environment, Invalid, Refused
from chain.ids import DatasetId
from chain.model.block import SealedBlock
from chain.multihash import SHA3_256, Multihash
from chain.rules.check import ChainChecker
from chain.state import ChainState
from chain.statements.statement import HeadStatement
from chain.statements.tree import Frontier
from chain.store.files import disk
from chain.store.objects import DiskObjects
from chain.wording import plural
from odfd.mirrors.quota import BlockQuota
from odfd.store.holdings import PER_BLOCK
from p2p.ports import PeerId, Tip, TreeRoot

CACHED: Final = 8 << 20
"""Bytes of a file that are cached by the kernel: most slices are no larger, and are read again at once."""
STAGED: Final = 2 << 20
"""Bytes written to the disk at once; a large file has two buffers of this size."""
_SPARE: Final = deque[tuple[memoryview, memoryview]](maxlen=4)
"""Buffers of closed files for reuse; making new ones would cost as much as is saved on a file of 100 MiB."""
_READ: Final = 1 << 20
_NO_BUFFER: Final = memoryview(b"")
_HANDS: Final = ThreadPoolExecutor(1, "hand to the disk")
"""The thread that writes the buffers of all files; each file has at most one waiting."""


class Spool:
    """A file being written; an existing file of that name is continued."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._filling = self._handed = _NO_BUFFER
        self._staged = 0
        """Bytes in the buffer that is being filled."""
        self._handing: Future[None] | None = None
        self._safe = 0
        """Bytes that are on the disk even if the pending write fails."""
        self._beside: int | None = None
        """The same file opened for writes that bypass the cache; ``None``: not possible or not open."""
        with disk(path):
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            self._written = os.fstat(self._file).st_size
            # O_DIRECT writes only from a multiple of a page on.
            if self._written > CACHED and self._written % PAGESIZE:
                self._cut(self._written - self._written % PAGESIZE)

    @property
    def size(self) -> int:
        """Size of the file in bytes, including bytes not written yet."""
        return self._written + self._staged

    def parts(self) -> Iterator[bytes]:
        """Yields the bytes that the file already had when it was opened."""
        for offset in range(0, self._written, _READ):
            with disk(self._path):
                yield os.pread(self._file, min(_READ, self._written - offset), offset)

    def append(self, data: bytes | memoryview) -> None:
        """Appends data; it has been copied, or is on the disk, when this returns."""
        rest = memoryview(data)
        with disk(self._path):
            if self._written < CACHED:
                rest = self._keep(rest)
            while rest:
                rest = self._stage(rest)

    def _keep(self, data: memoryview) -> memoryview:
        """Writes the beginning through the page cache; returns the rest of the data."""
        head = data[: CACHED - self._written]
        _put(self._file, head, self._written)
        self._written += len(head)
        if self._written == CACHED:
            # Makes the kernel begin to write now; otherwise it would write all at the end, while others wait.
            self._hand_on(os.posix_fadvise, self._file, 0, CACHED, os.POSIX_FADV_DONTNEED)
        return data[len(head) :]

    def _stage(self, data: memoryview) -> memoryview:
        """Copies data into the buffer that is being filled; returns the rest that does not fit."""
        if self._filling is _NO_BUFFER:
            self._filling, self._handed = _buffers()
            with suppress(OSError):
                self._beside = os.open(self._path, os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC)
        part = data[: STAGED - self._staged]
        self._filling[self._staged : self._staged + len(part)] = part
        self._staged += len(part)
        if self._staged == STAGED:
            self._filling, self._handed = self._handed, self._filling
            self._hand_on(self._give, self._handed, self._written)
            self._written, self._staged = self.size, 0
        return data[len(part) :]

    def _hand_on(self, work: Callable[..., None], *given: Any) -> None:
        self._settle()
        self._safe = self._written
        self._handing = _HANDS.submit(work, *given)

    def _give(self, buffer: memoryview, offset: int) -> None:
        """Writes a buffer past the cache; the part that the file system refuses is written normally."""
        count = 0
        if self._beside is not None:
            try:
                count = os.pwrite(self._beside, buffer, offset)
            except OSError as error:
                # Some file systems open a file with O_DIRECT and refuse to write so.
                if error.errno != errno.EINVAL:
                    raise
        _put(self._file, buffer[count:], offset + count)

    def _settle(self) -> None:
        """Waits for the pending write. If it failed, cuts the file back to what is safe."""
        handing, self._handing = self._handing, None
        if handing is None:
            return
        try:
            handing.result()
        except OSError:
            # A hole may lie before what was written later (test_after_a_full_disk_it_goes_on_from_what_is_there).
            self._cut(self._safe)
            raise

    def _cut(self, size: int) -> None:
        self._written, self._staged = size, 0
        os.ftruncate(self._file, size)

    def clear(self) -> None:
        """Discards everything that was written."""
        with disk(self._path):
            self._settle()
            self._cut(0)

    def close(self) -> None:
        """Writes out all appended data, without a sync; may be called again."""
        if self._file < 0:
            return
        try:
            with disk(self._path):
                self._settle()
                _put(self._file, self._filling[: self._staged], self._written)
        finally:
            os.close(self._file)
            if self._beside is not None:
                os.close(self._beside)
            self._file, self._beside = -1, None
            if self._filling is not _NO_BUFFER:
                _SPARE.append((self._filling, self._handed))
            self._filling = self._handed = _NO_BUFFER


def _buffers() -> tuple[memoryview, memoryview]:
    """Returns two page-aligned buffers, as ``O_DIRECT`` requires."""
    with suppress(IndexError):
        return _SPARE.pop()
    return memoryview(mmap(-1, STAGED)), memoryview(mmap(-1, STAGED))


def _put(file: int, data: memoryview, offset: int) -> None:
    while data:
        count = os.pwrite(file, data, offset)
        data, offset = data[count:], offset + count


MAX_PENDING: Final = 200_000
"""Blocks of one signed head that wait in memory until its tree is proven; a longer step is refused."""
MAX_PENDING_BYTES: Final = 256 << 20
"""Bytes of these blocks; one block may have 16 MiB."""


class SinkFull(Refused):
    """Raised when too many bytes of blocks wait; the blocks accepted until then are good."""


class SignedFault(Refused):
    """Raised for a block that breaks a rule although its owner signed it: whoever gave it is not at fault."""

    def __init__(self, fault: Invalid) -> None:
        super().__init__(fault.message, rule=fault.rule, hint=fault.hint, place=fault.place)
        self.fault = fault


class VerifiedChain:
    """Receives blocks after ``state``, up to the signed ``head``: hashes, links and judges them as they come.

    Only ``finish`` proves that they are the blocks of the signed head; nothing is committed before. For a step that
    ends at ``until``, before the head, it cannot prove that: a peer must show that ``frontier`` is the beginning of the
    signed tree.
    """

    def __init__(
        self,
        state: ChainState,
        frontier: Frontier,
        head: HeadStatement,
        until: int | None = None,
        room: BlockQuota | None = None,
        proves: Callable[[TreeRoot], bool] = lambda _: False,
    ) -> None:
        """``room``: where bytes of blocks are reserved before they are accepted; ``None``: nowhere. ``proves``: whether
        a peer proves that a tree is the beginning of the signed one."""
        self.start, self.began = state, frontier
        self._head = head
        self._room, self._proves = room, proves
        self._reserved = 0
        self.until = head.size if until is None else until
        self.givers: set[PeerId] = set()
        self.blocks: list[SealedBlock] = []
        self.groups: list[bytes] = []
        """The subtrees that became complete."""
        self._judge, self.frontier = ChainChecker(state), frontier
        self.bytes = 0
        if self.until - state.size > MAX_PENDING:
            raise Refused(
                f"{head.dataset.short} is {plural(self.until - state.size, 'block')} ahead",
                rule="mirror-step",
                hint=f"at most {MAX_PENDING:,} at once for now; import it from a directory first",
            )

    @property
    def state(self) -> ChainState:
        """The state after the blocks received so far."""
        return self._judge.state

    @property
    def size(self) -> int:
        return self._judge.state.size

    @property
    def tip(self) -> Tip:
        return Tip(self._head.size, self._head.head.digest)

    @property
    def epoch(self) -> int:
        """The epoch of the signed head."""
        return self._head.epoch

    @property
    def dataset(self) -> DatasetId:
        return self._head.dataset

    @property
    def stated(self) -> int | None:
        """The frontier that the signed head states, if the step ends there."""
        return self._head.upper if self.size == self._head.size else None

    def append(self, peer: PeerId, start: int, blocks: Sequence[bytes]) -> None:
        if start != self.size or start + len(blocks) > self.until:
            raise Invalid(f"blocks from #{start} were not asked for", rule="range", place=str(peer))
        self.givers.add(peer)
        # Blocks count for the quota like data (test_a_chain_of_large_blocks_ends_at_the_quota).
        self._reserve(blocks)
        try:
            sealed = self._judge.take(blocks)
        except Invalid:
            # An owner may sign a wrong block, which honest peers pass on
            # (test_a_block_that_its_owner_signed_is_no_fault_of_who_gave_it).
            self._check_unsigned(blocks)
            raise
        self.frontier = self.frontier.extend((block.hash.digest for block in sealed), self.groups)
        self.blocks += sealed
        self.bytes += sum(map(len, blocks))
        # Not yet proven, and in memory: a block may have 16 MiB (test_large_blocks_make_short_steps).
        if self.bytes > MAX_PENDING_BYTES and self.size < self.until:
            raise SinkFull(
                f"{plural(len(self.blocks), 'block')} of {self._head.dataset.short}, of {self.bytes:,} bytes, "
                "not yet proven",
                rule="mirror-step",
                hint=f"at most {MAX_PENDING_BYTES:,} at once for now; import it from a directory first",
            )

    def _check_unsigned(self, blocks: Sequence[bytes]) -> None:
        """Raises SignedFault if the first of these blocks that breaks a rule is one that the head signs."""
        judge, leaves = ChainChecker(self.state), list[bytes]()
        for raw in blocks:
            leaves.append(Multihash.sha3_256(raw).digest)
            try:
                judge.take([raw])
            except Invalid as fault:
                tree = self.frontier.extend(leaves)
                is_whole = tree.size == self._head.size
                if tree.root == self._head.root_hash if is_whole else self._proves(TreeRoot(tree.size, tree.root)):
                    raise SignedFault(fault) from fault
                return

    def _reserve(self, blocks: Sequence[bytes]) -> None:
        """Reserves room for blocks. Raises SinkFull if there is none; blocks received before stay good."""
        if self._room is None:
            return
        size = sum(map(len, blocks)) + PER_BLOCK * len(blocks)
        try:
            self._room.take(size)
        except Environment as fault:
            raise SinkFull(fault.message, rule=fault.rule, hint=fault.hint) from fault
        self._reserved += size

    def let_go(self) -> None:
        """Releases the reserved room: the blocks are stored and counted, or discarded."""
        if self._room is not None:
            self._room.give_back(self._reserved)
        self._reserved = 0

    def end_here(self) -> None:
        """Ends the step here in place of ``until``, after SinkFull. Raises Invalid as ``finish``."""
        self.until = self.size
        self.finish()

    def finish(self) -> None:
        """Proves the step. Raises Invalid, and discards all blocks, if the tree is not the signed one."""
        state = self._judge.state
        if state.dataset != self._head.dataset:
            self._forget("its Seed names another dataset", "graft")
        if self.until < self._head.size:
            return
        if state.head != self._head.head or self.frontier.root != self._head.root_hash:
            self._forget("the blocks are not those that the signed head commits to", "trust.tree")

    def _forget(self, message: str, rule: str) -> None:
        self.let_go()
        self._judge, self.frontier, self.bytes = ChainChecker(self.start), self.began, 0
        self.blocks.clear()
        self.groups.clear()
        raise Invalid(message, rule=rule, place=self._head.dataset.short)


class PartialObject:
    """Receives one object into ``partial/<name>``, which is kept over restarts, and hashes it while it grows."""

    def __init__(self, folder: Path, objects: DiskObjects, name: Multihash) -> None:
        self._path = folder / str(name)
        self._objects = objects
        self._name = name
        self._hash = hashlib.sha3_256()
        self._file = Spool(self._path)
        for part in self._file.parts():
            self._hash.update(part)

    @property
    def stop(self) -> int | None:
        return None

    @property
    def received(self) -> int:
        return self._file.size

    def write(self, data: bytes | memoryview) -> None:
        self._file.append(data)
        self._hash.update(data)

    def finish(self) -> None:
        actual = Multihash.from_digest(SHA3_256, self._hash.digest())
        if actual != self._name:
            self.abandon()
            raise Invalid(f"object {self._name.short}: the bytes hash to {actual.short}", rule="object-hash")
        self.close()
        with disk(self._path):
            self._objects.adopt(self._path, self._name)

    def abandon(self) -> None:
        self._file.clear()
        self._hash = hashlib.sha3_256()

    def close(self) -> None:
        """Closes the file; received bytes stay for the next attempt."""
        self._file.close()


class SmallObjects:
    """Receives small objects, many in one answer: each is hashed, and waits in the store for the next commit."""

    def __init__(self, objects: DiskObjects, names: Sequence[Multihash]) -> None:
        self._objects = objects
        self._names = names
        self.received = 0

    def take(self, objects: Sequence[bytes]) -> None:
        for data in objects:
            name = self._names[self.received]
            actual = Multihash.sha3_256(data)
            if actual != name:
                raise Invalid(f"object {name.short}: the bytes hash to {actual.short}", rule="object-hash")
            self._objects.adopt_bytes(data, name)
            self.received += 1

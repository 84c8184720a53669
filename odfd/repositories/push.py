"""Writes a dataset to a bucket or an SFTP server: objects, then the blocks that name them, then packs, then the head.

Nobody sees anything before the head moves, so a push that is cut off anywhere changes nothing visible; what it wrote
counts for the next one. The head moves only from the one that was there at the start. Blocking.
"""

from __future__ import annotations

import hashlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol

from chain.codec.blocks import MAX_BLOCK, read_link
from chain.compare import Comparison, Relation
from chain.errors import Conflict, Invalid, NotFound, Remote
from chain.multihash import Multihash
from chain.store.base import ChainReader, Head
from chain.store.layout import BLOCKS, HEAD
from odfd.published.packs import PACK, pack, pack_file
from odfd.published.signed import MAX_STATEMENT, SIGNED_HEAD, SignedState
from odfd.repositories.files import RepositoryFiles, StoredFile
from odfd.runtime.buckets import CHUNK
from odfd.transfer.folders import Missing, OnProgress, Transfer, write_dataset

TOGETHER: Final = 16
"""Most files that are written at the same time."""
WAITING: Final = 4 * TOGETHER
BATCH: Final = 256
"""Most blocks that are held back until the objects before them are written."""
BATCH_BYTES: Final = 8 << 20
WALKED: Final = 1024
"""Most blocks of another history that are read to find where it parts."""
_MAX_REF: Final = 256


def push_dataset(
    missing: Missing,
    bucket: RepositoryFiles,
    folder: str,
    signed: SignedState,
    progress: OnProgress,
    sent: Callable[[int], None],
) -> Transfer:
    """Updates ``folder`` of a bucket with those parts of ``missing`` that it lacks.

    ``sent`` is called with numbers of bytes, on any thread. Raises Conflict if another history is there, or gets there
    meanwhile; Remote and Refused of the store.
    """
    head_file = bucket.get(f"{folder}/{HEAD}", _MAX_REF)
    trust_file = bucket.get(f"{folder}/{SIGNED_HEAD}", MAX_STATEMENT)
    there = None if head_file is None else _head(head_file.content, bucket, folder)
    start = 0 if there is None else continues(missing.chain, missing.head, there, bucket, folder)
    missing = missing._replace(start=start, there=there)
    if there != missing.head.hash:
        bucket.check_conditions()
    with RepositoryWriter(bucket, folder, head_file, _packs(missing), sent) as writer:
        done = write_dataset(missing, writer, progress)
    if signed.is_here and signed.files:
        _sign(bucket, folder, signed, trust_file)
    return done


class RepositoryWriter:
    """A ``LayoutWriter`` that writes many files at a time, in the order that readers need. Made for one push."""

    def __init__(
        self,
        bucket: RepositoryFiles,
        folder: str,
        head: StoredFile | None,
        beside: Iterator[tuple[str, bytes]],
        sent: Callable[[int], None],
    ) -> None:
        """``beside``: files that are written before the head, after all blocks."""
        self._bucket, self._folder, self._head, self._beside = bucket, folder, head, beside
        self._sent, self._lock = sent, threading.Lock()
        self._pool = ThreadPoolExecutor(TOGETHER)
        self._objects: deque[Future[None]] = deque()
        self._blocks: list[tuple[Multihash, bytes]] = []
        self._bytes = 0

    def __enter__(self) -> RepositoryWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)

    def add_object(self, folder: str, name: Multihash, source: Path) -> None:
        if len(self._objects) >= WAITING:
            self._objects.popleft().result()
        path = f"{self._folder}/{folder}/{name}"
        self._objects.append(self._pool.submit(self._object, path, name, source))

    def add_block(self, name: Multihash, raw: bytes) -> None:
        self._blocks.append((name, raw))
        self._bytes += len(raw)
        if len(self._blocks) >= BATCH or self._bytes >= BATCH_BYTES:
            self._settle()

    def set_head(self, name: Multihash, expected: Multihash | None) -> None:  # noqa: ARG002  its tag says the same
        self._settle()
        for path, content in self._beside:
            self._put(f"{self._folder}/{path}", content)
        path, text = f"{self._folder}/{HEAD}", str(name).encode()
        if self._bucket.put_if(path, text, None if self._head is None else self._head.tag):
            return
        now = self._bucket.get(path, _MAX_REF)
        if now is None or now.content != text:  # else the answer to our own write was lost, and it was repeated
            shown = "gone" if now is None else f"{_head(now.content, self._bucket, self._folder).short} now"
            raise Conflict(f"its head is {shown}", rule="compare-and-append")

    def _settle(self) -> None:
        """Waits until all objects are written, then writes the blocks."""
        while self._objects:
            self._objects.popleft().result()
        paths = [f"{self._folder}/{BLOCKS}/{name}" for name, _ in self._blocks]
        list(self._pool.map(self._put, paths, [raw for _, raw in self._blocks]))
        self._blocks, self._bytes = [], 0

    def _put(self, path: str, content: bytes) -> None:
        self._bucket.put(path, content)
        self._report(len(content))

    def _object(self, path: str, name: Multihash, source: Path) -> None:
        """Writes an object, unless it is there already; one of another size is torn, and is written again."""
        size = source.stat().st_size
        if self._bucket.size(path) != size:
            self._bucket.put(path, self._read(name, source))

    def _read(self, name: Multihash, source: Path) -> Iterator[bytes]:
        """Yields the bytes of an object; raises Invalid at the end if it is damaged, so that it is not stored."""
        digest = hashlib.sha3_256()
        with source.open("rb") as opened:
            while part := opened.read(CHUNK):
                digest.update(part)
                self._report(len(part))
                yield part
        if digest.digest() != name.digest:
            text = f"object {name.short} is damaged here"
            raise Invalid(text, rule="slice-physical-hash", hint="odfctl doctor --deep finds what else is")

    def _report(self, size: int) -> None:
        with self._lock:
            self._sent(size)


def _packs(missing: Missing) -> Iterator[tuple[str, bytes]]:
    chain, start, size = missing.chain, missing.start, missing.head.size
    for number in range(start // PACK, -(-size // PACK)):
        first = number * PACK
        yield pack_file(number), pack(chain.raw_blocks(first, min(first + PACK, size)))


def _sign(bucket: RepositoryFiles, folder: str, signed: SignedState, before: StoredFile | None) -> None:
    """Writes the signed head after its proofs; keeps a head that was written meanwhile, which is as new."""
    *walk, (path, head) = signed.files
    if before is not None and before.content == head:
        return
    for each, raw in walk:
        bucket.put(f"{folder}/{each}", raw)
    bucket.put_if(f"{folder}/{path}", head, None if before is None else before.tag)


def _head(text: bytes, bucket: RepositoryFiles, folder: str) -> Multihash:
    try:
        return Multihash.parse(text.decode("ascii").strip())
    except (Invalid, UnicodeDecodeError):
        place = f"{bucket.name}/{folder}"
        raise Remote(f"{HEAD} of {place} does not hold a block's hash", rule="layout-head") from None


class ReadFiles(Protocol):
    """Reads files of a ``Bucket`` or of a node."""

    name: str

    def get(self, path: str, limit: int) -> StoredFile | None: ...


def continues(chain: ChainReader, head: Head, there: Multihash, bucket: ReadFiles, folder: str) -> int:
    """Returns how many blocks of this chain are there already. Raises Conflict if others are there, Remote."""
    number = _number(chain, there)
    if number is not None:
        return number + 1
    first, theirs = _parting(chain, there, bucket, folder)
    relation = Relation.BEHIND if first == head.size else Relation.DIVERGED
    found = Comparison(relation=relation, common=first, ours=head.size - first, theirs=theirs)
    rule = "export-behind" if relation is Relation.BEHIND else "export-diverged"
    raise Conflict(found.describe("the node", f"{bucket.name}/{folder}"), rule=rule)


def _parting(chain: ChainReader, there: Multihash, bucket: ReadFiles, folder: str) -> tuple[int, int]:
    """Returns the number of the first block there that is not ours, and how many there are from it on."""
    name: Multihash | None = there
    for walked in range(1, WALKED + 1):
        assert name is not None
        found = bucket.get(f"{folder}/{BLOCKS}/{name}", MAX_BLOCK)
        if found is None or Multihash.sha3_256(found.content) != name:
            text = f"{bucket.name}/{folder} does not hold its block {name.short}"
            raise Remote(text, rule="published-tree", hint="ask its operator to repair it, or push under another name")
        name = read_link(found.content).prev_block_hash
        if name is None:
            return 0, walked
        if (number := _number(chain, name)) is not None:
            return number + 1, walked
    text = f"{bucket.name}/{folder} and the node part more than {WALKED:,} blocks before its head"
    raise Conflict(text, rule="export-diverged")


def _number(chain: ChainReader, name: Multihash) -> int | None:
    try:
        return chain.block_by_hash(name).sequence_number
    except NotFound:
        return None

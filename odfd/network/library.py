"""Serves blocks and objects to the peers that may have them, as far as policy for purpose ``serve`` permits.

Implements ``p2p.ports.Library``; called from worker threads. Whether a peer may have a dataset is checked on every
request; the reach is cached for a moment. All bytes are hashed before they leave. Damage is reported to the node, and
the peer is told that the data is not here.

``VerifiedReads`` reads objects for peers and hashes every byte before it is sent, so that damage on disk is never
passed on. A small object is read whole and hashed against its name. A large one is hashed whole on its first request,
and a digest of every MiB is kept; later requests hash only the MiBs that they read and compare them, so that an answer
costs in proportion to its length. Called from worker threads; memory is bounded.
"""

from __future__ import annotations

import copy
import hashlib
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from io import FileIO
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import msgspec
from cachetools import LRUCache
from zlib_ng import zlib_ng

from chain.errors import Environment, NotFound
from chain.ids import DatasetId
from chain.instant import SECOND, Instant
from chain.multihash import SHA3_256, Multihash
from chain.store.base import BlockDamaged, ChainStore, Head, ObjectStore
from chain.store.database import Database
from chain.store.files import ObjectDamaged, disk
from chain.store.objects import SMALL
from chain.wording import agree, plural
from odfd.network.evidence_provider import EvidenceProvider
from odfd.network.swarm_parts import SwarmParts
from odfd.network.tree_proofs import TreeProofs
from odfd.store.damage import DamagedBlock
from odfd.store.references import references_to
from odfd.store.visibility import PublicOf
from p2p.ports import HeldParts, PartsAsk, PeerId, PiecesAsk

PART: Final = 1 << 20
"""Bytes under one digest; peers request as many at once."""
DIGEST: Final = 4
"""Bytes of a digest. It detects bit rot, not an adversary, and is never sent: a CRC costs a hundredth of a hash."""
MAX_PARTS: Final = 4 << 20
"""Digests kept at most, 16 MiB for 4 TiB of objects; the objects requested least recently make room."""


class _IntactObject(msgspec.Struct, frozen=True):
    """A large object that was intact when it was hashed."""

    path: Path
    size: int
    digests: bytes

    @property
    def parts(self) -> int:
        return len(self.digests) // DIGEST


class VerifiedReads:
    """Verified reads from one object store."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._whole: LRUCache[Multihash, _IntactObject] = LRUCache(MAX_PARTS, lambda whole: min(whole.parts, MAX_PARTS))
        self._lock = threading.Lock()

    def size(self, name: Multihash) -> int:
        """Returns the size of an object last seen whole. Raises NotFound, ObjectDamaged, Environment."""
        size = self._objects.size(name)
        if size <= SMALL:
            return len(self.small(name))
        return self._look_up(name).size

    def read(self, name: Multihash, offset: int, into: memoryview) -> tuple[int, int]:
        """Fills ``into`` from ``offset`` on; returns the object's size and the bytes read. Raises as ``size`` does."""
        if name not in self._whole and self._objects.size(name) <= SMALL:
            data = self.small(name)
            part = data[offset : offset + len(into)]
            into[: len(part)] = part
            return len(data), len(part)
        whole = self._look_up(name)
        stop, at = min(offset + len(into), whole.size), offset
        with disk(whole.path), FileIO(whole.path) as file:
            while at < stop:
                number, skip = divmod(at, PART)
                count = min(PART - skip, stop - at)
                room = into[at - offset :][:count]
                self._part(name, file, whole, number, room, skip)
                at += count
        return whole.size, max(0, stop - offset)

    def small(self, name: Multihash) -> bytes:
        """Returns a whole object of at most SMALL bytes. Raises as ``size`` does."""
        data = self._objects.read(name)
        if Multihash.sha3_256(data) != name:
            raise ObjectDamaged(name)
        return data

    def _part(
        self, name: Multihash, file: FileIO, whole: _IntactObject, number: int, into: memoryview, skip: int
    ) -> None:
        """Fills ``into`` from byte ``skip`` of a MiB on; the whole MiB is read and compared."""
        size = min(PART, whole.size - number * PART)
        part = into if len(into) == size else memoryview(bytearray(size))
        file.seek(number * PART)
        count = file.readinto(part)
        if count != size or _digest(part) != whole.digests[number * DIGEST : (number + 1) * DIGEST]:
            self._forget(name)
            raise ObjectDamaged(name)
        if part is not into:
            into[:] = part[skip : skip + len(into)]

    def _look_up(self, name: Multihash) -> _IntactObject:
        with self._lock:
            if (known := self._whole.get(name)) is not None:
                return known
        found = self._verify(name)
        with self._lock:
            self._whole[name] = found
        return found

    def _verify(self, name: Multihash) -> _IntactObject:
        path = self._objects.path(name)
        whole, digests, size = hashlib.sha3_256(), bytearray(), 0
        with disk(path), path.open("rb") as file:
            while part := file.read(PART):
                whole.update(part)
                digests += _digest(part)
                size += len(part)
        if Multihash.from_digest(SHA3_256, whole.digest()) != name:
            raise ObjectDamaged(name)
        return _IntactObject(path, size, bytes(digests))

    def _forget(self, name: Multihash) -> None:
        with self._lock:
            self._whole.pop(name, None)


def _digest(part: bytes | memoryview) -> bytes:
    return zlib_ng.crc32(part).to_bytes(DIGEST, "big")


REACH_AGE: Final = SECOND // 2
"""How old a computed reach may be."""
TOLD_AGE: Final = 600 * SECOND
"""How long an answer that lists what is within reach is cached; each request is checked again."""
MAX_SERVED: Final = 256
"""Objects that are being transferred and are known to be served, at most."""
OnDamage: TypeAlias = Callable[[DatasetId, DamagedBlock], object]


class _Served(NamedTuple):
    """The blocks that name a served object, valid up to a number of writes to the database."""

    writes: int
    at: Instant
    named: list[tuple[DatasetId, int]]


class ServingTerms(NamedTuple):
    """The limits on what a node serves."""

    public_of: PublicOf
    reach: Callable[[DatasetId], int]
    """Returns how many blocks of a public dataset policy permits to serve."""
    within: Callable[[str], PublicOf] | None = None
    """Returns ``public_of`` of each network; ``None`` if all networks are alike."""
    swarm: SwarmParts | None = None
    """Tells peers that fetch at the same time who has which parts; ``None`` tells nothing."""


class Reaches:
    """Caches for a short time how far policy permits to serve each dataset."""

    def __init__(self, reach: Callable[[DatasetId], int], clock: Callable[[], Instant]) -> None:
        self._reach = reach
        self._clock = clock
        self._known: dict[DatasetId, tuple[Instant, Head | None, int]] = {}
        """By dataset: the time of the computation, the head it was for, and the blocks within reach."""
        self._moves = 0
        """Counts changes; a reach that was computed across a change is not cached."""
        self._lock = threading.Lock()

    def blocks(self, dataset: DatasetId, head: Head, given_age: int) -> int:
        """Counts the blocks to serve, by a cached reach no older than REACH_AGE or, if positive, ``given_age``."""
        now = self._clock()
        with self._lock:
            at, of, blocks = self._known.get(dataset, (Instant(0), None, 0))
            moves = self._moves
        if of != head or not 0 <= now - at < (max(REACH_AGE, given_age) if blocks else REACH_AGE):
            blocks = self._reach(dataset)
            with self._lock:
                if moves == self._moves:
                    self._known[dataset] = (now, head, blocks)
        return blocks

    def forget(self, dataset: DatasetId | None = None) -> None:
        """Drops the cached reach of one dataset, or of all."""
        with self._lock:
            self._moves += 1
            if dataset is None:
                self._known.clear()
            else:
                self._known.pop(dataset, None)


class _Whole(Reaches):
    """The whole of each dataset is within reach."""

    def __init__(self) -> None:
        super().__init__(lambda _: 0, lambda: Instant(0))

    def blocks(self, dataset: DatasetId, head: Head, given_age: int) -> int:  # noqa: ARG002  none is computed
        return head.size


class ServingLibrary:
    """The blocks and objects that one node serves."""

    def __init__(
        self,
        database: Database,
        chains: ChainStore,
        objects: ObjectStore,
        terms: ServingTerms,
        clock: Callable[[], Instant],
        damaged: OnDamage = lambda _dataset, _spot: None,
        evidence: EvidenceProvider | None = None,
    ) -> None:
        """``damaged`` is called from a worker thread with each damage found; ``evidence``: bundles to serve as well."""
        self._evidence = evidence
        self._database = database
        self._chains = chains
        self._objects = objects
        self._public_of, self._terms = terms.public_of, terms
        self._network = ""
        """The network that this view serves; empty for none in particular."""
        self._asker: PeerId | None = None
        """The peer that this view serves; ``None`` for anyone."""
        self._reaches = Reaches(terms.reach, clock)
        self._clock = clock
        self._spoken: dict[tuple[str, PeerId | None, Multihash], _Served] = {}
        self._giving = VerifiedReads(objects)
        self._damaged = damaged
        self._prover = TreeProofs(database)
        self._lock = threading.Lock()

    def to(self, peer: PeerId) -> ServingLibrary:
        """Returns the library as seen by a peer. All views share their caches."""
        given = copy.copy(self)
        given._asker, given._public_of = peer, lambda datasets, _=None: self._public_of(datasets, peer)
        given._evidence = None if self._evidence is None else self._evidence.to(peer)
        return given

    def within(self, network: str) -> ServingLibrary:
        """Returns the library as seen in a network. All views share their caches."""
        given = copy.copy(self)
        given._network = network
        if self._terms.within is not None:
            given._public_of = self._terms.within(network)
            given._evidence = None if self._evidence is None else self._evidence.within(given._public_of)
        return given

    def as_read_by(self, readable: Callable[[Iterable[DatasetId]], Collection[DatasetId]]) -> ServingLibrary:
        """Returns the library as seen by an account: all blocks of readable datasets. Shares no cache."""
        given = copy.copy(self)
        given._public_of = lambda datasets, _=None: frozenset(readable(datasets))
        given._evidence, given._spoken, given._reaches = None, {}, _Whole()
        return given

    def datasets(self, limit: int) -> Sequence[DatasetId]:
        """Lists served datasets as in the port, looked up every few seconds; one stays served until its head moves."""
        public = sorted(self._public_of(self._chains.datasets()))
        heads = ((one, self._chains.chain(one).head()) for one in public)
        return list(islice((one for one, head in heads if head and self._reaches.blocks(one, head, TOLD_AGE)), limit))

    def size(self, dataset: DatasetId) -> int:
        """Counts served blocks; a private dataset costs the same lookups as an absent one."""
        head = self._chains.chain(dataset).head()
        if not self._public_of([dataset]) or head is None:
            return 0
        return self._reaches.blocks(dataset, head, 0)

    def note_change(self, dataset: DatasetId) -> None:
        """Notes a new signed head or a change of visibility, before peers learn of it and ask."""
        self._reaches.forget(dataset)

    def policy_changed(self) -> None:
        """Drops all cached reaches."""
        self._reaches.forget()

    def blocks(self, dataset: DatasetId, start: int, max_bytes: int) -> Sequence[bytes]:
        """Returns blocks as in the port, up to a damaged one. Raises BlockDamaged when that is the first."""
        given: list[bytes] = []
        room = max_bytes
        try:
            for raw in self._chains.chain(dataset).raw_blocks(start, self.size(dataset)):
                # The first block comes however long it is, or its asker would never get on:
                # docs/spec/replication.md#chains.
                if given and len(raw) > room:
                    break
                given.append(raw)
                room -= len(raw)
        except BlockDamaged as fault:
            self._report(fault, [(dataset, fault.number)])
            if not given:
                raise
        return given

    def prove(self, dataset: DatasetId, size: int, *, old: int | None = None, index: int | None = None) -> list[bytes]:
        if size > self.size(dataset):
            raise NotFound(
                f"{plural(size, 'block')} of {dataset.short} {agree(size, 'is', 'are')} not served here",
                rule="chain-not-served",
            )
        return self._prover.prove(dataset, size, old=old, index=index)

    def object_size(self, name: Multihash) -> int | None:
        named = self._find_naming(name) if self._objects.has(name) else []
        if not named:
            return None if self._evidence is None else self._evidence.size(name)
        try:
            return self._giving.size(name)
        except ObjectDamaged as fault:
            self._report(fault, named)
            return None

    def object_part(self, name: Multihash, offset: int, into: memoryview) -> tuple[int, int]:
        """Reads as in the port; raises NotFound for a damaged object too."""
        if (found := self._part_under_way(name, offset, into)) is not None:
            return found
        named = self._find_served(name)
        if not named:
            return self._part_of_evidence(name, offset, into)
        try:
            size, count = self._giving.read(name, offset, into)
            self._note_given(named, name, count)
            return size, count
        except ObjectDamaged as fault:
            self._report(fault, named)
            raise _not_served(name) from fault

    def parts(self, ask: PartsAsk) -> HeldParts | None:
        """Tells which parts are here, as in the port; a private dataset looks like an absent one."""
        served, swarm = self.size(ask.dataset), self._terms.swarm
        if swarm is None or not self._public_of([ask.dataset]):
            return None
        return swarm.parts(self._asker, ask, served)

    def pieces(self, ask: PiecesAsk) -> HeldParts | None:
        """Tells as in the port."""
        swarm = self._terms.swarm
        if swarm is None or not self._names(ask.dataset, ask.name):
            return None
        return swarm.pieces(self._asker, ask, self._objects)

    def piece_list(self, dataset: DatasetId, name: Multihash, size: int) -> tuple[bytes, bytes] | None:
        """Tells as in the port."""
        swarm = self._terms.swarm
        if swarm is None or not self._names(dataset, name):
            return None
        return swarm.piece_list(dataset, name, size, self._objects)

    def _names(self, dataset: DatasetId, name: Multihash) -> bool:
        """Whether this asker may have an object as one of a dataset; of a private one as of an absent one."""
        if not self._public_of([dataset]):
            return False
        if self._terms.swarm is not None:
            self._terms.swarm.arriving.of(dataset)  # asks policy: what is under way is found by its last answer
        return any(each == dataset for each, _ in self._find_naming(name))

    def _part_under_way(self, name: Multihash, offset: int, into: memoryview) -> tuple[int, int] | None:
        """Of an object whose pieces come in any order; ``None``: it is none of these."""
        file = None if self._terms.swarm is None else self._terms.swarm.arriving.file(name)
        if file is None or not into or not self._under_way(name):
            return None
        if (count := file.read(offset, into)) is not None:
            return file.list.size, count
        if self._objects.has(name):
            return None
        raise _not_served(name)

    def _note_given(self, named: Sequence[tuple[DatasetId, int]], name: Multihash, count: int) -> None:
        if self._terms.swarm is not None:
            self._terms.swarm.gave(self._asker, [dataset for dataset, _ in named], name, count)

    def _part_of_evidence(self, name: Multihash, offset: int, into: memoryview) -> tuple[int, int]:
        size = None if self._evidence is None else self._evidence.size(name)
        data = None if self._evidence is None else self._evidence.read(name, offset, len(into))
        if size is None or data is None:
            raise _not_served(name)
        into[: len(data)] = data
        return size, len(data)

    def read_object(self, name: Multihash, offset: int, length: int) -> bytes:
        """Reads at most ``length`` bytes. Raises as ``object_part``."""
        into = bytearray(max(0, min(length, (self.object_size(name) or 0) - offset)))
        _, count = self.object_part(name, offset, memoryview(into))
        return bytes(into[:count])

    def small_objects(self, names: Sequence[Multihash], largest: int) -> Iterator[bytes]:
        """Yields small objects as in the port, without damaged ones."""
        within: dict[DatasetId, int] = {}
        for name in names:
            named = self._find_naming(name, within) if self._objects.has(name) else []
            if not named:
                if (data := self._small_evidence(name, largest)) is None:
                    return
                yield data
                continue
            try:
                if self._objects.size(name) > largest:
                    return
                data = self._giving.small(name)
                self._note_given(named, name, len(data))
            except ObjectDamaged as fault:
                self._report(fault, named)
                return
            yield data

    def _small_evidence(self, name: Multihash, largest: int) -> bytes | None:
        size = None if self._evidence is None else self._evidence.size(name)
        if self._evidence is None or size is None or size > largest:
            return None
        return self._evidence.read(name, 0, largest)

    def _find_served(self, name: Multihash) -> list[tuple[DatasetId, int]]:
        """Does as ``_find_naming`` for an object that is here; cached for a while, until the next write."""
        writes, now = self._database.writes, self._clock()
        for asker in (None, self._asker):
            known = self._spoken.get((self._network, asker, name))
            # A revocation is a write: it holds for the next part (test_a_transfer_under_way_ends_with_the_next_part).
            if known is not None and known.writes == writes and 0 <= now - known.at < REACH_AGE:
                return known.named
        named = self._find_naming(name) if self._objects.has(name) else []
        with self._lock:
            self._spoken.pop((self._network, self._asker, name), None)
            if named:
                self._spoken[self._network, self._asker, name] = _Served(writes, now, named)
            if len(self._spoken) > MAX_SERVED:
                del self._spoken[next(iter(self._spoken))]
        return named

    def _find_naming(self, name: Multihash, within: dict[DatasetId, int] | None = None) -> list[tuple[DatasetId, int]]:
        """Returns the blocks that name an object if one of them is within reach; none otherwise.

        ``within``: caches how far each chain is served; missing entries are added.
        """
        with self._database.read() as connection:
            named = references_to(connection, name)
        if (under_way := self._under_way(name)) and not named:
            return under_way
        reach = {} if within is None else within
        for dataset, _ in named:
            if dataset not in reach:
                reach[dataset] = self.size(dataset)
        return named if any(0 <= sequence < reach[dataset] for dataset, sequence in named) else under_way

    def _under_way(self, name: Multihash) -> list[tuple[DatasetId, int]]:
        """Returns uncommitted blocks that name an object, of datasets that this peer may have."""
        if self._terms.swarm is None:
            return []
        named = self._terms.swarm.arriving.find(name)
        return [each for each in named if self._public_of([each[0]])]

    def _report(self, fault: Environment, places: Sequence[tuple[DatasetId, int]]) -> None:
        for dataset, sequence in places:
            self._damaged(dataset, DamagedBlock(sequence, fault.rule, fault.message))


def _not_served(name: Multihash) -> NotFound:
    return NotFound(f"object {name.short} is not served here", rule="object-not-served")

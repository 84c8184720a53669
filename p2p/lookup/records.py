"""Keeps records of who serves datasets for other nodes, each brought by the peer that signed it. Sans-IO.

Everything is bounded: the records of a key, of a block of addresses for one key and for all keys, and all together. If
a key has too many records, those of the blocks that rank first stay, by an order that each node draws for each key and
keeps secret. So neither coming first nor coming often helps, and an attacker has only as many chances as it has address
blocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from hashlib import sha256
from typing import Final, Generic, TypeVar

import msgspec

from chain.backoff import Chance
from chain.errors import Invalid
from p2p.ports import Judgement
from p2p.wire import lookup as wire
from p2p.wire.lookup import StoreOutcome
from p2p.wire.presence import Presence

T = TypeVar("T", bound=Hashable)


class RandomSet(Generic[T]):
    def __init__(self) -> None:
        self._members: list[T] = []
        self._at: dict[T, int] = {}
        self._turn = 0

    def __len__(self) -> int:
        return len(self._members)

    def add(self, member: T) -> None:
        """Adds a member, which must not be in the set yet."""
        self._at[member] = len(self._members)
        self._members.append(member)

    def remove(self, member: T) -> None:
        at = self._at.pop(member)
        last = self._members.pop()
        if at < len(self._members):
            self._members[at] = last
            self._at[last] = at

    def draw(self, rng: Chance) -> T:
        return self._members[int(rng.random() * len(self._members))]

    def next(self, most: int) -> list[T]:
        """Returns the next ``most`` members in turn."""
        start = self._turn if self._turn < len(self._members) else 0
        found = self._members[start : start + most]
        self._turn = start + len(found)
        return found


MAX_SKEW: Final = 600_000
"""Milliseconds that a provider's clock may be ahead; the same as for presences."""
SAMPLED: Final = 8
"""When all records together are too many, one of so many drawn at random is dropped: of the block with most records."""


class RecordLimits(msgspec.Struct, frozen=True, kw_only=True):
    of_key: int = 32
    """Records kept of one dataset: a searcher needs a few holders, not all."""
    of_block_and_key: int = 2
    """Records of one dataset from one /24 or /48."""
    of_block: int = 1024
    """Records of all datasets from one /24 or /48."""
    in_all: int = 8192
    """All records: about 4 MiB, and 18 MiB if each is as long as possible."""


LIMITS: Final = RecordLimits()


class Kept(msgspec.Struct, frozen=True):
    raw: bytes
    issued: int
    expires: int
    block: bytes


def judge_record(raw: bytes, network: str, key: bytes, now: int) -> Presence | Judgement:
    """Returns the content of a record; REJECT: its provider did not sign it for this key;
    IGNORE: not valid at ``now`` (ms)."""
    try:
        found = wire.decode_record(raw)
    except Invalid:
        return Judgement.REJECT
    if not wire.is_record_signed(raw, found, network, key):
        return Judgement.REJECT
    return Judgement.IGNORE if found.expires <= now or found.issued > now + MAX_SKEW else found


class ProviderRecords:
    """The records that one node keeps for a network."""

    def __init__(self, network: str, secret: bytes, limits: RecordLimits = LIMITS) -> None:
        """``secret``: random bytes that decide which records stay when too many come."""
        self._network = network
        self._secret = secret
        self._limits = limits
        self._keys: dict[bytes, dict[bytes, Kept]] = {}
        self._all = RandomSet[tuple[bytes, bytes]]()
        self._blocks: Counter[bytes] = Counter()
        self.evicted = 0
        """Records that were dropped for others before they expired."""

    def __len__(self) -> int:
        return len(self._all)

    @property
    def size(self) -> int:
        """Returns the bytes of all records, without the overhead of storing them."""
        return sum(len(one.raw) for of_key in self._keys.values() for one in of_key.values())

    def keep(self, key: bytes, raw: bytes, provider: bytes, block: bytes, now: int, rng: Chance) -> StoreOutcome:
        """Keeps a record that the provider itself brought, whose key is ``provider``, from an address in ``block``."""
        before = self._keys.get(key, {}).get(provider)
        # Before the signature is verified: records for which there is no room cost nothing.
        if before is None and not self._may_bring(key, block, now):
            return StoreOutcome.FULL
        found = judge_record(raw, self._network, key, now)
        if (
            isinstance(found, Judgement)
            or found.key != provider
            # An older record is a replay; the same one again is none.
            or (before is not None and found.issued <= before.issued and raw != before.raw)
        ):
            return StoreOutcome.BAD
        if before is not None:
            self._drop(key, provider)
        else:
            self._make_room(key, rng)
        self._keys.setdefault(key, {})[provider] = Kept(raw, found.issued, found.expires, block)
        self._all.add((key, provider))
        self._blocks[block] += 1
        return StoreOutcome.KEPT

    def of(self, key: bytes, most: int, now: int, rng: Chance) -> tuple[bytes, ...]:
        """Returns at most ``most`` unexpired records of a key, random ones if there are more."""
        living = [one.raw for one in self._keys.get(key, {}).values() if one.expires > now]
        while len(living) > most:
            living.pop(int(rng.random() * len(living)))
        return tuple(living)

    def expire(self, now: int, most: int = 256) -> int:
        """Drops the expired ones among the next ``most`` records, all in turn; returns their number."""
        gone = [(key, who) for key, who in self._all.next(most) if self._keys[key][who].expires <= now]
        for key, provider in gone:
            self._drop(key, provider)
        return len(gone)

    def _may_bring(self, key: bytes, block: bytes, now: int) -> bool:
        if self._blocks[block] >= self._limits.of_block:
            return False
        for provider in [who for who, one in self._keys.get(key, {}).items() if one.expires <= now]:
            self._drop(key, provider)
        blocks = [one.block for one in self._keys.get(key, {}).values()]
        if blocks.count(block) >= self._limits.of_block_and_key:
            return False
        return len(blocks) < self._limits.of_key or self._rank(key, block) < max(self._rank(key, one) for one in blocks)

    def _make_room(self, key: bytes, rng: Chance) -> None:
        of_key = self._keys.get(key, {})
        if len(of_key) >= self._limits.of_key:
            self._evict(key, max(of_key, key=lambda who: self._rank(key, of_key[who].block)))
        if len(self._all) >= self._limits.in_all:
            drawn = [self._all.draw(rng) for _ in range(SAMPLED)]
            self._evict(*max(drawn, key=lambda at: self._blocks[self._keys[at[0]][at[1]].block]))

    def _rank(self, key: bytes, block: bytes) -> bytes:
        return sha256(self._secret + key + block).digest()

    def _evict(self, key: bytes, provider: bytes) -> None:
        self.evicted += 1
        self._drop(key, provider)

    def _drop(self, key: bytes, provider: bytes) -> None:
        of_key = self._keys[key]
        block = of_key.pop(provider).block
        if not of_key:
            del self._keys[key]
        self._all.remove((key, provider))
        self._blocks[block] -= 1
        if not self._blocks[block]:
            del self._blocks[block]

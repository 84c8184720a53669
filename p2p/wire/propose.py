"""Encodes and decodes the messages of ``/odf/1/propose``: compare-and-append at another node's commit point.

Bodies of frames, numbers in network order; ``did`` is the 34 bytes of an id, ``hash`` the 34 of a multihash::

    propose   01  u8 count  count x (did  u64 upper  u8 follows [did]  u16 blocks  blocks x (u32 size  bytes)
                                     u16 objects  objects x hash)
    ask       02  u8 count  count x did
    data      03  bytes: a piece of the object that was wanted; an empty one ends it
    want      81  hash  u64 size
    outcomes  82  u8 count  count x (u8 kind  shard  u64 time  u16 stored  stored x hash  u16 proposed  proposed x hash)
    shards    83  u8 count  count x shard
    refused   84  u8 family  u8 length  rule  text
    shard     u8 has a head  [hash  u64 sequence]  u64 upper

``want`` comes before the outcomes, once for each object that the commit point lacks. The receiver checks that blocks
are valid and that objects hash to their names. Pure. Spec: docs/spec/collections.md#propose.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from typing import Final, TypeAlias

import msgspec

from chain.codec.blocks import decode_block
from chain.errors import Conflict, Environment, Fault, Invalid, NotFound, Refused
from chain.ids import DatasetId
from chain.multihash import Multihash
from chain.store.base import Head
from chain.store.shards import (
    SEALED,
    Committed,
    Conflicting,
    Equivalent,
    Gap,
    Outcome,
    Proposal,
    Same,
    Shard,
    ShardSealed,
    Stale,
)
from p2p.wire.limits import MAX_REASON, MIB

PROPOSE_PROTOCOL: Final = "/odf/1/propose"
MAX_PROPOSALS: Final = 65
"""Proposals in one message: all shards of a collection, and the chain that binds their times."""
MAX_BLOCKS: Final = 4096
"""Blocks of one transaction of a shard."""
MAX_OBJECTS: Final = 8192
MAX_PROPOSE: Final = 20 * MIB
"""Bytes of a message: enough for a block of the largest size and others."""
MAX_PIECE: Final = 256 << 10
_HASH: Final = 34
_U16, _U32, _U64 = struct.Struct(">H"), struct.Struct(">I"), struct.Struct(">Q")


class Kind(enum.IntEnum):
    """The first byte of a message. A closed set."""

    PROPOSE = 0x01
    ASK = 0x02
    DATA = 0x03
    WANT = 0x81
    OUTCOMES = 0x82
    SHARDS = 0x83
    REFUSED = 0x84


class Wanted(msgspec.Struct, frozen=True):
    """A request of the commit point for an object that it lacks."""

    name: Multihash
    size: int


class RefusedProposal(msgspec.Struct, frozen=True):
    """An answer: nothing was appended, because of ``fault``."""

    fault: Fault


Answer: TypeAlias = Wanted | tuple[Outcome, ...] | tuple[Shard, ...] | RefusedProposal
_OUTCOMES: Final[tuple[type[Outcome], ...]] = (Committed, Same, Equivalent, Conflicting, Stale, Gap, ShardSealed)
_FAMILIES: Final[tuple[type[Fault], ...]] = (NotFound, Invalid, Refused, Conflict, Environment)


def encode_propose(proposals: Sequence[Proposal]) -> bytes:
    """Encodes proposals. Raises Invalid if they are more than a message may hold."""
    parts = [bytes([Kind.PROPOSE, _count(proposals, MAX_PROPOSALS)])]
    for each in proposals:
        _count(each.blocks, MAX_BLOCKS)
        _count(each.objects, MAX_OBJECTS)
        parts += [bytes(each.dataset), _U64.pack(_number(each.new_upper)), bytes([each.follows is not None])]
        parts += [b"" if each.follows is None else bytes(each.follows), _U16.pack(len(each.blocks))]
        for block in each.blocks:
            parts += [_U32.pack(len(block.raw)), block.raw]
        parts += [_U16.pack(len(each.objects)), *map(bytes, each.objects)]
    body = b"".join(parts)
    if len(body) > MAX_PROPOSE:
        raise Invalid(f"a proposal of {len(body):,} bytes", rule="propose-size", hint=f"at most {MAX_PROPOSE:,}")
    return body


def decode_propose(body: bytes) -> list[Proposal]:
    """Decodes proposals. Raises Invalid, also for bytes that are no block."""
    read = _Reader(body, Kind.PROPOSE)
    proposals = []
    for _ in range(read.count(MAX_PROPOSALS)):
        dataset, upper = read.dataset(), read.u64()
        follows = read.dataset() if read.flag() else None
        blocks = [decode_block(read.take(read.u32())) for _ in range(read.u16(MAX_BLOCKS))]
        objects = [read.hash() for _ in range(read.u16(MAX_OBJECTS))]
        made = Proposal(dataset=dataset, blocks=blocks, new_upper=upper, objects=objects, follows=follows)
        proposals.append(made)
    read.end()
    return proposals


def encode_ask(datasets: Sequence[DatasetId]) -> bytes:
    """Encodes a question for the heads of shards. Raises Invalid if there are too many."""
    return bytes([Kind.ASK, _count(datasets, MAX_PROPOSALS)]) + b"".join(map(bytes, datasets))


def decode_ask(body: bytes) -> list[DatasetId]:
    """Decodes a question for the heads of shards. Raises Invalid."""
    read = _Reader(body, Kind.ASK)
    datasets = [read.dataset() for _ in range(read.count(MAX_PROPOSALS))]
    read.end()
    return datasets


def encode_data(piece: bytes) -> bytes:
    return bytes([Kind.DATA]) + piece


def decode_data(body: bytes) -> bytes:
    """Decodes one piece of an object. Raises Invalid."""
    if body[:1] != bytes([Kind.DATA]) or len(body) > 1 + MAX_PIECE:
        raise _malformed("no piece of an object")
    return body[1:]


def encode_want(wanted: Wanted) -> bytes:
    return bytes([Kind.WANT]) + bytes(wanted.name) + _U64.pack(wanted.size)


def encode_outcomes(outcomes: Sequence[Outcome]) -> bytes:
    parts = [bytes([Kind.OUTCOMES, len(outcomes)])]
    for each in outcomes:
        time = each.time if isinstance(each, Conflicting) else each.limit if isinstance(each, Gap) else 0
        both = (each.stored, each.proposed) if isinstance(each, Conflicting) else ((), ())
        parts += [bytes([_OUTCOMES.index(type(each))]), _shard(each.shard), _U64.pack(time)]
        for names in both:
            parts += [_U16.pack(len(names)), *map(bytes, names)]
    return b"".join(parts)


def encode_shards(shards: Sequence[Shard]) -> bytes:
    return bytes([Kind.SHARDS, len(shards)]) + b"".join(map(_shard, shards))


def encode_refused(fault: Fault) -> bytes:
    """Encodes a refusal. A fault of a family that the protocol lacks is sent as one of the environment."""
    family = next((place for place, each in enumerate(_FAMILIES) if isinstance(fault, each)), len(_FAMILIES) - 1)
    rule = fault.rule.encode()[: MAX_REASON - 1]
    text = fault.message.encode()[:MAX_REASON].decode(errors="ignore").encode()
    return bytes([Kind.REFUSED, family, len(rule)]) + rule + text


def decode_answer(body: bytes) -> Answer:
    """Decodes any answer of the commit point. Raises Invalid."""
    match body[:1]:
        case b"\x81":
            read = _Reader(body, Kind.WANT)
            wanted = Wanted(read.hash(), read.u64())
            read.end()
            return wanted
        case b"\x82":
            return _outcomes(_Reader(body, Kind.OUTCOMES))
        case b"\x83":
            read = _Reader(body, Kind.SHARDS)
            shards = tuple(read.shard() for _ in range(read.count(MAX_PROPOSALS)))
            read.end()
            return shards
        case b"\x84":
            return _refused(_Reader(body, Kind.REFUSED))
        case _:
            raise _malformed("no answer to a proposal")


def _outcomes(read: _Reader) -> tuple[Outcome, ...]:
    outcomes: list[Outcome] = []
    for _ in range(read.count(MAX_PROPOSALS)):
        kind = read.u8()
        if kind >= len(_OUTCOMES):
            raise _malformed("an outcome of no kind")
        shard, time = read.shard(), read.u64()
        names = [tuple(read.hash() for _ in range(read.u16(MAX_BLOCKS))) for _ in range(2)]
        made = _OUTCOMES[kind]
        if made is Conflicting:
            outcomes.append(Conflicting(shard, time, *names))
        elif made is Gap:
            outcomes.append(Gap(shard, time))
        elif time or any(names):
            raise _malformed("an outcome that says too much")
        else:
            outcomes.append(made(shard))  # type: ignore[call-arg]
    read.end()
    return tuple(outcomes)


def _refused(read: _Reader) -> RefusedProposal:
    family = read.u8()
    if family >= len(_FAMILIES):
        raise _malformed("a refusal of no family")
    try:
        rule, text = read.take(read.u8()).decode(), read.rest(MAX_REASON).decode()
    except UnicodeDecodeError as error:
        raise _malformed("a refusal that is no text") from error
    return RefusedProposal(_FAMILIES[family](text, rule=rule or "propose"))


def _shard(shard: Shard) -> bytes:
    head = b"\x00" if shard.head is None else b"\x01" + bytes(shard.head.hash) + _U64.pack(shard.head.sequence_number)
    return head + _U64.pack(shard.upper)


def _count(values: Sequence[object], most: int) -> int:
    if len(values) > most:
        raise Invalid(f"{len(values)} of at most {most} in a proposal", rule="propose-size")
    return len(values)


def _number(number: int) -> int:
    if not 0 <= number < 1 << 64:
        raise Invalid(f"upper {number} is no time", rule="append-upper")
    return number


def _malformed(what: str) -> Invalid:
    return Invalid(what, rule="propose-message")


class _Reader:
    """Reads fields from a message body in order. Raises Invalid if the body ends early or a field is invalid."""

    def __init__(self, body: bytes, kind: Kind) -> None:
        self._body, self._at = body, 1
        if body[:1] != bytes([kind]):
            raise _malformed(f"no {kind.name.lower()}")

    def take(self, size: int) -> bytes:
        found = self._body[self._at : self._at + size]
        if len(found) != size:
            raise _malformed("a message that ends early")
        self._at += size
        return found

    def rest(self, most: int) -> bytes:
        return self.take(min(most + 1, len(self._body) - self._at)) if self._at < len(self._body) else b""

    def u8(self) -> int:
        return self.take(1)[0]

    def count(self, most: int) -> int:
        found = self.u8()
        if not 0 < found <= most:
            raise _malformed(f"{found} in a message")
        return found

    def u16(self, most: int) -> int:
        (found,) = _U16.unpack(self.take(2))
        if found > most:
            raise _malformed(f"{found} in a list")
        return int(found)

    def u32(self) -> int:
        return int(_U32.unpack(self.take(4))[0])

    def u64(self) -> int:
        return int(_U64.unpack(self.take(8))[0])

    def flag(self) -> bool:
        found = self.u8()
        if found > 1:
            raise _malformed("a flag of neither kind")
        return bool(found)

    def hash(self) -> Multihash:
        return Multihash.from_bytes(self.take(_HASH))

    def dataset(self) -> DatasetId:
        return DatasetId.from_bytes(self.take(_HASH))

    def shard(self) -> Shard:
        head = Head(self.hash(), self.u64()) if self.flag() else None
        upper = self.u64()
        if upper > SEALED:
            raise _malformed("an upper that is no time")
        return Shard(head, upper)

    def end(self) -> None:
        if self._at != len(self._body):
            raise _malformed("a message that goes on")

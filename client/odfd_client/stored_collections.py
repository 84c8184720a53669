"""Reads which shards of a repository belong together: ``trust/collection`` in the folder of a collection's name.

It has the signed card that lists all shards, and the signed head of each, as the publisher's node wrote them. What they
say is read; their signatures are a node's to judge, as those of a head are. Each shard is a dataset in a folder of its
id, beside the folder of the name.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from odfd_client.chain_blocks import Block
from odfd_client.errors import Invalid, NotFound, Refused
from odfd_client.places import Place
from odfd_client.stored_chains import Cut, StoredChain

FILE: Final = "trust/collection"
MAX_FILE: Final = 512 << 10
SEALED: Final = (1 << 53) - 1
_MOST: Final = 64
_KEY: Final = 32
_CARD, _HEAD = "https://w3id.org/odfd/trust/card/v1", "https://w3id.org/odfd/trust/head/v1"
_MILLI: Final = 1_000_000
_RULE: Final = "shard-missing"


@dataclass(frozen=True, slots=True)
class SignedShard:
    """A shard, and the block up to which its signed head says that it goes."""

    id: str
    head: str
    size: int
    upper: int
    """A time in milliseconds before which no further block will come; 0: none was said."""


@dataclass(frozen=True)
class StoredCollection:
    """The shards of a collection, up to one time."""

    name: str
    chains: tuple[StoredChain, ...]
    signed: tuple[SignedShard, ...]

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(each.id for each in self.signed)

    def heads(self) -> list[Block]:
        """Returns the block of each signed head. Raises NotFound, which names a shard that is missing or stale."""
        return [self._head(chain, each) for chain, each in zip(self.chains, self.signed, strict=True)]

    def upper(self) -> int:
        """Returns the time in milliseconds before which all shards are complete: the least of theirs."""
        return min(max(each.upper, head.time // _MILLI) for each, head in zip(self.signed, self.heads(), strict=True))

    def cuts(self, time: int | None = None) -> list[Cut]:
        """Returns the cut of each shard at the last time that is complete in all, or at an earlier one.

        ``time``: in nanoseconds. Raises NotFound.
        """
        heads = self.heads()
        last = self.upper() * _MILLI - 1
        until = last if time is None else min(time, last)
        return [
            Cut(chain, chain.until(until, head), each.id)
            for chain, head, each in zip(self.chains, heads, self.signed, strict=True)
        ]

    def of_block(self, name: str) -> int:
        """Returns the time of a block of any shard, in nanoseconds. Raises NotFound, Refused."""
        for chain, head in zip(self.chains, self.heads(), strict=True):
            found = next((each for each in chain.back_to(0, head) if each.hash == name), None)
            if found is None:
                continue
            if found.time // _MILLI >= self.upper():
                raise Refused(f"the transaction of {name} is not in all shards of {self.name} yet", rule=_RULE)
            return found.time
        raise NotFound(f"no shard of {self.name} has a block {name}", rule="query-block",
                       hint="the whole hash of a block of any shard: each shard has a block of a number")  # fmt: skip

    def _head(self, chain: StoredChain, signed: SignedShard) -> Block:
        if chain.head_name() is None:
            raise NotFound(f"shard {signed.id} of {self.name} is missing in {chain.place.shown}", rule=_RULE,
                           hint="its publisher pushes the collection again: odfctl push")  # fmt: skip
        try:
            head = chain.block(signed.head, signed.size - 1)
        except NotFound as error:
            raise NotFound(
                f"shard {signed.id} of {self.name} is stale: it does not hold the block of its signed head",
                rule=_RULE,
                hint="copy the whole repository again, or have its publisher push the collection",
            ) from error
        if head.number != signed.size - 1 or chain.seed(head)[0] != signed.id:
            raise Invalid(f"the chain stored as shard {signed.id} of {self.name} is another dataset", rule=_RULE)
        return head


def shards_in(place: Place, folder: str) -> tuple[SignedShard, ...] | None:
    """Returns the shards of the collection that a folder names; ``None``: it names none.

    Raises Invalid, which names a shard whose head does not say that it belongs.
    """
    raw = place.read(f"{folder}/{FILE}".lstrip("/"), MAX_FILE)
    if raw is None:
        return None
    shown = f"{place.shown}/{folder}"
    try:
        return _shards(_split(raw), shown)
    except (ValueError, KeyError, TypeError, AttributeError, binascii.Error, RecursionError) as error:
        raise Invalid(f"{FILE} of {shown} is damaged: {error}", rule="repository-collection") from error


def beside(folder: str, dataset: str) -> str:
    """Returns the folder of a shard, by that of its collection's name."""
    parent, slash, _ = folder.rpartition("/")
    return f"{parent}{slash}{dataset.removeprefix('did:odf:')}"


def _shards(statements: Sequence[bytes], shown: str) -> tuple[SignedShard, ...]:
    _, listed = _parse_statement(statements[0], _CARD)
    keys = base64.b64decode(listed["shards"]["keys"], validate=True)
    ids = [f"did:odf:fed01{keys[start : start + _KEY].hex()}" for start in range(0, len(keys), _KEY)]
    if len(keys) % _KEY or not 2 <= len(ids) <= _MOST or len(set(ids)) < len(ids) or listed["dataset"] != ids[0]:
        raise ValueError("its card does not list the shards")
    found = []
    for number, dataset in enumerate(ids, start=1):
        if number >= len(statements):
            raise NotFound(f"{shown} has no head of its shard {dataset}", rule=_RULE, hint="odfctl push")
        head, said = _parse_statement(statements[number], _HEAD)
        if said["dataset"] != dataset or said.get("collection") != ids[0]:
            raise Invalid(f"the head of {dataset} does not say that it is a shard of {shown}", rule=_RULE,
                          hint="its publisher pushes it again; a shard is read by its id")  # fmt: skip
        size, upper = said["size"], said.get("upper", 0)
        if type(size) is not int or type(upper) is not int or not 0 < size <= SEALED or not 0 <= upper <= SEALED:
            raise ValueError("a head without a size or a frontier (upper)")
        found.append(SignedShard(dataset, head, size, upper))
    return tuple(found)


def _parse_statement(envelope: bytes, kind: str) -> tuple[str, dict[str, Any]]:
    """Returns the block that a statement is about, and what it says. Raises ValueError, KeyError, TypeError."""
    payload = json.loads(base64.b64decode(json.loads(envelope)["payload"], validate=True))
    if payload["predicateType"] != kind:
        raise ValueError("a statement of another kind")
    (subject,) = payload["subject"]
    said: dict[str, Any] = payload["predicate"]
    return "f1620" + bytes.fromhex(subject["digest"]["sha3_256"]).hex(), said


def _split(raw: bytes) -> list[bytes]:
    found: list[bytes] = []
    at = 0
    while at < len(raw) and len(found) <= _MOST:
        length, at = int.from_bytes(raw[at : at + 4], "big"), at + 4
        found.append(raw[at : at + length])
        at += length
    if at != len(raw) or not found or not all(found):
        raise ValueError("its parts do not fill it")
    return found

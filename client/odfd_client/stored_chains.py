"""Reads the chain of a dataset from a repository, from its head backwards and only as far as needed.

Each block is named by the block after it and hashed, so all that is read follows from the head, or from a pin. The head
itself is what the repository says: its signatures are a node's to judge.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from odfd_client.chain_blocks import (
    MAX_BLOCK,
    SEED,
    SET_INFO,
    SET_TRANSFORM,
    SET_VOCAB,
    Block,
    Merge,
    Notice,
    Slice,
    decode_block,
    hasher,
)
from odfd_client.errors import Bug, Invalid, NotFound, Remote
from odfd_client.places import Place

_MAX_REF: Final = 256
_MAX_STATE: Final = 256 << 10
_MAX_PACK: Final = 8 << 20
_PACK: Final = 1024
_WORTH_A_PACK: Final = 8
_ROWS: Final = -1
_MILLI: Final = 1_000_000
KEYED: Final = (3, 4, 5)
"""Merge strategies with a key whose rows are retracted: Snapshot, ChangelogStream, UpsertStream."""


@dataclass(frozen=True)
class Cut:
    """The part of a chain up to one block."""

    chain: StoredChain
    head: Block
    known_id: str = ""
    """The id of the dataset, if it is known without reading the first block."""

    @property
    def dataset(self) -> str:
        return self.known_id or self.chain.seed(self.head)[0]

    def blocks(self, first: int = 0) -> list[Block]:
        """Returns the blocks from a number on, in order."""
        return [*self.chain.back_to(first, self.head)][::-1]

    def slices(self, after: int = -1) -> list[Slice]:
        """Returns the slices with rows after an offset, in order. Raises Bug unless offsets follow each other."""
        found: list[Slice] = []
        for block in self.chain.back_to(0, self.head):
            if (each := block.slice) is not None:
                if found and each.last != found[-1].first - 1:
                    raise Bug(f"offsets of {self.chain.shown} do not follow each other", rule="repository-offsets")
                if each.last <= after:
                    break
                found.append(each)
        else:
            if found and found[-1].first != 0:
                raise Bug(f"offsets of {self.chain.shown} do not begin with 0", rule="repository-offsets")
        return found[::-1]

    def last_offset(self) -> int:
        found = self.chain.last_with_rows(self.head)
        return -1 if found is None or found.slice is None else found.slice.last

    def vocabulary(self) -> tuple[str, str, str, str]:
        """Returns the columns of offset, operation, system time and event time."""
        found = self.chain.last_of(SET_VOCAB, self.head)
        given = None if found is None else found.vocabulary
        return given or ("offset", "op", "system_time", "event_time")

    def key(self) -> tuple[str, ...] | None:
        """Returns the key by which rows replace each other; ``None``: none, retractions repeat the whole row."""
        blocks = self.blocks()
        if any(block.event == SET_TRANSFORM for block in blocks):
            return None
        merges: dict[str, Merge] = {block.merge.source: block.merge for block in blocks if block.merge is not None}
        keys = {merge.key for merge in merges.values()}
        if len(keys) != 1 or any(merge.strategy not in KEYED for merge in merges.values()):
            return None
        return keys.pop()


@dataclass
class StoredChain:
    """The blocks of one dataset that were read so far, by their names: what a name means never changes."""

    place: Place
    folder: str
    known: dict[str, Block] = field(default_factory=dict)
    _packs: set[int] = field(default_factory=set)
    _has_packs: bool = True
    _last: dict[int, tuple[str, Block | None]] = field(default_factory=dict)
    """The last block with an event, by the event's number, or with rows, and the block up to which it was sought."""

    @property
    def shown(self) -> str:
        return f"{self.place.shown}/{self.folder}".rstrip("/")

    def path(self, file: str) -> str:
        return f"{self.folder}/{file}".lstrip("/")

    def head_name(self) -> str | None:
        """Returns the hash of the newest block: that of the commit point, if there is one. Raises Invalid."""
        row = self._row()
        raw = str(row["head"]).encode() if row is not None else self.place.read(self.path("refs/head"), _MAX_REF)
        if raw is None:
            return None
        name = raw.decode("ascii", "replace").strip()
        hasher(name)
        return name

    def head(self) -> Block:
        """Returns the newest block. Raises NotFound, Invalid."""
        name = self.head_name()
        if name is None:
            raise NotFound(f"{self.shown} is not a dataset: it has no refs/head", rule="dataset",
                           hint="name the folder of a dataset in the repository, or its id")  # fmt: skip
        return self.block(name)

    def upper(self) -> int | None:
        """Returns the time in milliseconds before which the blocks are complete; ``None``: sealed.

        Without a promise beside the chain it is the time of the last block, which another block may still have.
        """
        row = self._row()
        if row is None:
            return self.head().time // _MILLI
        upper = row["upper"]
        return None if upper == (1 << 53) - 1 else max(int(upper), self.head().time // _MILLI)

    def _row(self) -> dict[str, Any] | None:
        """Returns the row of this chain in the state of a commit point; ``None``: there is none."""
        if not self.folder.startswith("f"):
            return None
        raw = self.place.read("trust/state", _MAX_STATE)
        if raw is None:
            return None
        try:
            row = json.loads(raw)["chains"].get(f"did:odf:{self.folder}")
            is_sound = row is None or (isinstance(row["head"], str) and type(row["upper"]) is int)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            is_sound = False
        if not is_sound:
            raise Invalid(f"trust/state of {self.place.shown} is damaged", rule="repository-state")
        found: dict[str, Any] | None = row
        return found

    def seed(self, head: Block | None = None) -> tuple[str, str]:
        """Returns the id and the kind of the dataset, as its first block says: all blocks up to the head are read.

        Raises Invalid, NotFound.
        """
        first = self.last_of(SEED, self.head() if head is None else head)
        if first is None or first.number != 0 or first.seed is None:
            raise Invalid(f"{self.shown} does not begin with a Seed", rule="repository-block")
        return first.seed

    def id(self) -> str:
        return self.seed()[0]

    def block(self, name: str, number: int | None = None) -> Block:
        """Returns a block by its name. Raises NotFound, Invalid for other bytes.

        ``number``: the number that it should have, which tells the pack that it may be in.
        """
        if name not in self.known and number is not None:
            self._take_pack(name, number)
        if name not in self.known:
            raw = self.place.read(self.path(f"blocks/{name}"), MAX_BLOCK)
            if raw is None:
                raise NotFound(f"{self.shown} does not hold its block {name[:14]}…", rule="repository-block",
                               hint="it was deleted or was never complete; read another copy")  # fmt: skip
            if not _is_named(name, raw):
                raise Invalid(f"what {self.shown} has as block {name[:14]}… is another", rule="repository-block",
                              hint="nothing of it was used; read another copy")  # fmt: skip
            self.known[name] = decode_block(raw)
        return self.known[name]

    def back_to(self, first: int, head: Block) -> Iterator[Block]:
        """Yields blocks from ``head`` back to number ``first``, each as it is read. Raises NotFound, Invalid."""
        block = head
        yield block
        while block.number > first:
            if block.prev is None:
                raise Invalid(f"block #{block.number} of {self.shown} names none before it", rule="repository-block")
            before = self.block(block.prev, block.number - 1)
            if before.number != block.number - 1 or before.time > block.time:
                raise Invalid(f"block #{block.number} of {self.shown} does not follow its own", rule="repository-block")
            block = before
            yield block

    def at(self, number: int, head: Block) -> Block | None:
        """Returns the block of a number; ``None``: the chain is shorter."""
        if not 0 <= number <= head.number:
            return None
        *_, found = self.back_to(number, head)
        return found

    def until(self, time: int, head: Block) -> Block:
        """Returns the last block of a time in nanoseconds, or an earlier one. Raises NotFound."""
        found = next((each for each in self.back_to(0, head) if each.time <= time), None)
        if found is None:
            raise NotFound(f"{self.shown} has no block of that time yet", rule="query-time", hint="a later time")
        return found

    def last_of(self, event: int, head: Block) -> Block | None:
        """Returns the last block with an event up to ``head``."""
        return self._newest(event, lambda block: block.event == event, head)

    def last_with_rows(self, head: Block) -> Block | None:
        """Returns the last block with a slice up to ``head``."""
        return self._newest(_ROWS, lambda block: block.slice is not None, head)

    def _newest(self, what: int, is_it: Callable[[Block], bool], head: Block) -> Block | None:
        """Goes back from ``head`` to where the same was sought before."""
        until, known = self._last.get(what, ("", None))
        found = None
        for each in self.back_to(0, head):
            if is_it(each):
                found = each
                break
            if each.hash == until:
                found = known
                break
        self._last[what] = head.hash, found
        return found

    def notice(self) -> Notice | None:
        """Returns where the collection goes on, as the newest description of the chain says."""
        found = self.last_of(SET_INFO, self.head())
        return None if found is None else found.notice

    def _take_pack(self, name: str, number: int) -> None:
        """Reads a pack of many blocks if it is worth it; blocks are known by their hashes alone."""
        pack = number // _PACK
        if not self._has_packs or pack in self._packs or number % _PACK < _WORTH_A_PACK or name in self.known:
            return
        self._packs.add(pack)
        try:
            raw = self.place.read(self.path(f"packs/{pack}"), _MAX_PACK)
            blocks = [] if raw is None else [decode_block(each) for each in _unpack(raw)]
        except (Invalid, Remote):  # a pack is a hint: blocks are read one by one instead
            blocks = []
        self._has_packs = bool(blocks)
        for block in blocks:
            self.known.setdefault(block.hash, block)


def _is_named(name: str, raw: bytes) -> bool:
    made = hasher(name)
    made.update(raw)
    return made.hexdigest() == name[5:]


def _unpack(raw: bytes) -> list[bytes]:
    """Returns the blocks of a pack; none if it is malformed, for a pack is a hint."""
    blocks: list[bytes] = []
    at = 0
    while at < len(raw):
        length, at = int.from_bytes(raw[at : at + 4], "big"), at + 4
        if not 0 < length <= MAX_BLOCK or at + length > len(raw) or len(blocks) == _PACK:
            return []
        blocks.append(raw[at : at + length])
        at += length
    return blocks

"""Keeps the shards of a collection in a bucket or a folder: each is a dataset there, and one file has all frontiers.

``trust/state`` names the head and the frontier of every chain, and is replaced only on condition (ADR 40): this is the
commit, of one shard or of several. Before it, the objects and the blocks that name them are written to ``ID/`` in the
ODF layout; after it ``ID/refs/head``, which any later writer brings up to date. Blocking; one thread at a time. Spec:
docs/spec/collections.md#commit-points.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Final, NamedTuple, Protocol

import msgspec

from chain.codec.blocks import MAX_BLOCK, decode_block
from chain.errors import Invalid, Remote
from chain.ids import DatasetId
from chain.model.block import Block, objects_of
from chain.multihash import Multihash
from chain.statements.canonical import MAX_INTEGER
from chain.store.base import Head
from chain.store.layout import BLOCKS, CHECKPOINTS, DATA, HEAD
from chain.store.shards import Proposal, Reading, Shard, View
from odfd.repositories.port import StoredFile

STATE: Final = "trust/state"
MAX_STATE: Final = 256 << 10
"""Most bytes of the state: enough for 64 shards in each of some ten renditions."""
_MAX_REF: Final = 256
_MENDED: Final = 3
"""Times that one append tries to bring up a head file that others write too."""
_Number = Annotated[int, msgspec.Meta(ge=0, le=MAX_INTEGER)]


class ConditionalFiles(Protocol):
    """Files with conditional writes: a ``Bucket`` or a ``Folder``."""

    name: str

    def get(self, path: str, limit: int) -> StoredFile | None: ...
    def size(self, path: str) -> int | None: ...
    def put(self, path: str, content: bytes) -> None: ...
    def put_if(self, path: str, content: bytes, tag: str | None) -> bool: ...
    def check_conditions(self) -> None: ...


class _ChainRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    head: str
    sequence: _Number
    upper: _Number


class _State(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: _Number
    """Grows with every change, so that no earlier content can return."""
    writer: str
    """Identifies the writer of the change, so that only one of two equal changes wins."""
    chains: dict[str, _ChainRow]


class _Token(NamedTuple):
    state: _State
    tag: str | None


class FileShards:
    """A ShardStore over files with conditional writes."""

    def __init__(self, files: ConditionalFiles, writer: str) -> None:
        """``writer``: a unique name. Raises Refused for a store without conditional writes, Remote."""
        self._files, self._writer = files, writer
        self._names: dict[DatasetId, list[Multihash]] = {}
        """Hashes of the blocks of chains that were read, by block number: 34 bytes each."""
        files.check_conditions()

    def read(self, datasets: Sequence[DatasetId]) -> Reading:
        found = self._files.get(STATE, MAX_STATE)
        state = _State(0, "", {}) if found is None else self._state(found.content)
        views = {each: self._view(each, state.chains) for each in datasets}
        return Reading(views, _Token(state, None if found is None else found.tag))

    def write(self, reading: Reading, changes: Sequence[tuple[Proposal, Shard]]) -> bool:
        token = reading.token
        assert isinstance(token, _Token)
        rows = dict(token.state.chains)
        for proposal, shard in changes:
            if shard.head is None:
                raise Invalid("an append without blocks", rule="append-empty", place=proposal.dataset.short)
            self._check_objects(proposal)
            for block in proposal.blocks:
                self._files.put(f"{proposal.dataset.multibase}/{BLOCKS}/{block.hash}", block.raw)
            rows[str(proposal.dataset)] = _ChainRow(str(shard.head.hash), shard.head.sequence_number, shard.upper)
        content = _encoded(_State(token.state.version + 1, self._writer, rows))
        if len(content) > MAX_STATE:
            raise Invalid(f"{STATE} of {self._files.name} would be too large", rule="append-shards")
        if not self._files.put_if(STATE, content, token.tag) and not self._is_there(content):
            return False
        for proposal, _ in changes:
            self._bring_up(proposal.dataset)
        return True

    def bring_up(self) -> None:
        """Writes the head files of a writer that died between the commit and them."""
        found = self._files.get(STATE, MAX_STATE)
        for name in {} if found is None else self._state(found.content).chains:
            self._bring_up(DatasetId.parse(name))

    def _is_there(self, content: bytes) -> bool:
        """Whether the state is our own: the answer to our write may have been lost, so that the library repeated it."""
        found = self._files.get(STATE, MAX_STATE)
        return found is not None and found.content == content

    def _bring_up(self, dataset: DatasetId) -> None:
        path = f"{dataset.multibase}/{HEAD}"
        for _ in range(_MENDED):
            head = self._files.get(path, _MAX_REF)
            state = self._files.get(STATE, MAX_STATE)
            assert state is not None
            text = self._state(state.content).chains[str(dataset)].head.encode()
            if head is not None and head.content == text:
                return
            if self._files.put_if(path, text, None if head is None else head.tag):
                return

    def _check_objects(self, proposal: Proposal) -> None:
        """Raises Invalid unless all objects that the blocks name are there."""
        folder = proposal.dataset.multibase
        sizes = {name: size for block in proposal.blocks for name, size in objects_of(block)}
        for name in dict.fromkeys([*sizes, *proposal.objects]):
            found = {self._files.size(f"{folder}/{part}/{name}") for part in (DATA, CHECKPOINTS)} - {None}
            if not found or sizes.get(name, max(found, key=bool)) not in found:
                raise Invalid(
                    f"object {name.short} is not in {self._files.name}",
                    rule="object-missing",
                    hint="objects come before the blocks that name them",
                    place=proposal.dataset.short,
                )

    def _view(self, dataset: DatasetId, rows: Mapping[str, _ChainRow]) -> View:
        row = rows.get(str(dataset))
        if row is None:
            return View(Shard(), _nothing)
        head = Head(self._hash(row.head), row.sequence)
        return View(Shard(head, row.upper), partial(self._block_at, dataset, head))

    def _block_at(self, dataset: DatasetId, head: Head, number: int) -> Block:
        names = self._names.get(dataset, [])
        if len(names) <= head.sequence_number or names[head.sequence_number] != head.hash:
            names = self._names[dataset] = self._walked(dataset, head, names)
        return self.block(dataset, names[number])

    def _walked(self, dataset: DatasetId, head: Head, known: Sequence[Multihash]) -> list[Multihash]:
        """Returns the hashes of all blocks up to a head; reads those that are not known, from the newest back."""
        names: list[Multihash] = []
        number, name = head.sequence_number, head.hash
        while not (number < len(known) and known[number] == name):
            names.append(name)
            block = self.block(dataset, name)
            if block.sequence_number != number or (block.prev_block_hash is None) != (number == 0):
                raise self._broken(f"block {name.short} is not #{number}")
            if block.prev_block_hash is None:
                return names[::-1]
            number, name = number - 1, block.prev_block_hash
        return [*known[: number + 1], *reversed(names)]

    def block(self, dataset: DatasetId, name: Multihash) -> Block:
        """Reads a block of a chain. Raises Remote for one that is missing or has other bytes."""
        found = self._files.get(f"{dataset.multibase}/{BLOCKS}/{name}", MAX_BLOCK)
        if found is None or Multihash.sha3_256(found.content) != name:
            raise self._broken(f"it does not hold its block {name.short}")
        return decode_block(found.content)

    def _state(self, content: bytes) -> _State:
        try:
            return msgspec.json.decode(content, type=_State)
        except msgspec.MsgspecError:
            raise self._broken(f"{STATE} is not what one of ours wrote") from None

    def _hash(self, text: str) -> Multihash:
        try:
            return Multihash.parse(text)
        except Invalid:
            raise self._broken(f"{STATE} names a head that is no hash") from None

    def _broken(self, why: str) -> Remote:
        return Remote(f"{self._files.name}: {why}", rule="shard-state", hint="ask its operator to repair it")


def _encoded(state: _State) -> bytes:
    return msgspec.json.encode(state, order="deterministic")


def _nothing(number: int) -> Block:
    raise IndexError(number)

"""Keeps a copy of the chains of a commit point in files, so that an instance reads them here and commits them there.

A copy is brought up to the commit point's state whenever that is read; it may be deleted at any time. Objects are
written to the files before the blocks that name them, and checked by their hash when they come from there. Blocking;
one thread at a time. Spec: docs/spec/collections.md#commit-points, #reclocking.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol

from chain.errors import Conflict, Environment, Invalid, Remote
from chain.ids import DatasetId
from chain.model.block import Block, objects_of
from chain.multihash import Multihash
from chain.state import ChainState, load_state
from chain.store.base import Append, Head, UpperMove
from chain.store.database import Database, open_database
from chain.store.layout import DATA
from chain.store.objects import DiskObjects, sound_path, staged_in
from chain.store.shards import Proposal, Reading, Shard, View
from chain.store.sqlite import SqliteChains
from odfd.repositories.shards import ConditionalFiles, FileShards
from odfd.runtime.filesystem import check_room
from p2p.files import FilePart

_PAGE: Final = 256
"""Most blocks of a chain that are copied in one transaction."""
_CHUNK: Final = 1 << 20


class SharedFiles(ConditionalFiles, Protocol):
    """Files with conditional writes whose content may be larger than memory: a ``Bucket`` or a ``Folder``."""

    def parts(self, path: str, offset: int) -> Iterator[FilePart]: ...
    def put(self, path: str, content: bytes | Iterator[bytes]) -> None: ...


class SharedChains:
    """A ShardStore over files, with a copy of the chains in a folder of this instance alone."""

    def __init__(self, files: SharedFiles, folder: Path, writer: str, reserve: int = 0) -> None:
        """``writer``: a name of this process alone; ``reserve``: bytes of the disk that stay free.

        Raises Refused for files without conditional writes, Remote, Environment.
        """
        self._files, self._folder, self._reserve = files, folder, reserve
        self._there = FileShards(files, writer)
        self.database: Database = open_database(folder / "chains.sqlite")
        self.objects = DiskObjects(folder / "objects", self.database)
        self.chains = SqliteChains(self.database, self.objects)
        self._known: dict[DatasetId, Shard] = {}
        """Up to where each copy was brought."""
        self._states: dict[DatasetId, ChainState] = {}

    def close(self) -> None:
        self.database.close()

    def read(self, datasets: Sequence[DatasetId]) -> Reading:
        """Reads the state of the commit point, and brings the copies up to it. Raises Remote, Conflict, Environment."""
        reading = self._there.read(datasets)
        views = {each: self._copied(each, view.shard) for each, view in reading.views.items()}
        return Reading(views, reading.token)

    def state(self, dataset: DatasetId) -> ChainState:
        """Returns the state of the copy of a chain. What it was before is not read again."""
        chain, state = self.chains.chain(dataset), self._states.get(dataset)
        head = chain.head()
        size = 0 if head is None else head.size
        if state is None or not state.size <= size <= state.size + _PAGE:
            state = load_state(chain)
        for number in range(state.size, size):
            state = state.advance(chain.block_at(number))
        self._states[dataset] = state
        return state

    def shards(self, datasets: Sequence[DatasetId]) -> list[Shard]:
        """Reads heads and frontiers at the commit point, and brings no copy up to them: one file. Raises Remote."""
        views = self._there.read(datasets).views
        return [views[each].shard for each in datasets]

    def write(self, reading: Reading, changes: Sequence[tuple[Proposal, Shard]]) -> bool:
        return self._there.write(reading, changes)

    def put_objects(self, dataset: DatasetId, names: Iterable[Multihash]) -> None:
        """Writes objects beside a chain, unless they are there. Raises NotFound, ObjectDamaged, Remote."""
        for name in names:
            path = f"{dataset.multibase}/{DATA}/{name}"
            if self._files.size(path) != self.objects.size(name):
                self._files.put(path, _read(sound_path(self.objects, name)))

    def fetch_object(self, dataset: DatasetId, name: Multihash, size: int) -> None:
        """Brings an object that lies beside a chain, unless it is here. Raises Remote for other bytes."""
        if self.objects.has(name):
            return
        path = f"{dataset.multibase}/{DATA}/{name}"
        there = self._files.size(path)
        if there != size:
            said = "is not there" if there is None else f"has {there:,} bytes, not {size:,}"
            raise Remote(f"object {name.short} of {self._files.name} {said}", rule="object-missing")
        check_room(self._folder, self._reserve, size, "an object of a collection is to come")
        with staged_in(self.objects) as staged:
            try:
                with staged.open("wb") as file:
                    for part in self._files.parts(path, 0):
                        file.write(part)
            except OSError as error:
                raise Environment(f"cannot write {staged.name}: {error.strerror}", rule="disk") from error
            found = self.objects.add_file(staged)
        if found != name:
            raise Remote(f"object {name.short} of {self._files.name} has other bytes", rule="object-hash")

    def _copied(self, dataset: DatasetId, shard: Shard) -> View:
        """Returns a view of the copy of a chain, which is brought up to ``shard``."""
        chain = self.chains.chain(dataset)
        if self._known.get(dataset) == shard:
            return View(shard, chain.block_at)
        own, upper = chain.head(), self.chains.upper(dataset)
        if shard.head is not None and (own != shard.head or upper != shard.upper):
            names, oldest = self._after(dataset, own, shard.head)
            for start in range(0, max(1, len(names)), _PAGE):
                page = oldest if start == 0 else self._page(dataset, names[start : start + _PAGE])
                is_last = start + _PAGE >= len(names)
                own = self._keep(dataset, own, page, UpperMove(upper, shard.upper) if is_last else None)
                upper = self.chains.upper(dataset)
        self._known[dataset] = shard
        return View(shard, chain.block_at)

    def _keep(self, dataset: DatasetId, own: Head | None, page: Sequence[Block], upper: UpperMove | None) -> Head:
        named = {name: size for block in page for name, size in objects_of(block)}
        for name, size in named.items():
            self.fetch_object(dataset, name, size)
        try:
            self.chains.commit([Append(dataset=dataset, expected=own, blocks=page, objects=list(named), upper=upper)])
        except (Conflict, Invalid) as error:
            raise self._rewritten(dataset) from error
        if not page:
            assert own is not None
            return own
        return Head(page[-1].hash, page[-1].sequence_number)

    def _page(self, dataset: DatasetId, names: Sequence[Multihash]) -> list[Block]:
        return [self._there.block(dataset, name) for name in names]

    def _after(self, dataset: DatasetId, own: Head | None, head: Head) -> tuple[list[Multihash], list[Block]]:
        """Returns the hashes of the blocks after ``own`` up to ``head``, and the first page of these blocks.

        Few new blocks are read once. Raises Conflict if ``own`` is not before ``head``.
        """
        names: list[Multihash] = []
        oldest: deque[Block] = deque(maxlen=_PAGE)
        number, name, least = head.sequence_number, head.hash, -1 if own is None else own.sequence_number
        while number > least:
            names.append(name)
            block = self._there.block(dataset, name)
            if block.sequence_number != number or (block.prev_block_hash is None) != (number == 0):
                raise Remote(f"{self._files.name}: block {name.short} is not #{number}", rule="shard-state")
            oldest.append(block)
            if block.prev_block_hash is None:
                return names[::-1], list(oldest)[::-1]
            number, name = number - 1, block.prev_block_hash
        if own is not None and name != own.hash:
            raise self._rewritten(dataset)
        return names[::-1], list(oldest)[::-1]

    def _rewritten(self, dataset: DatasetId) -> Conflict:
        return Conflict(
            f"{self._files.name} has another history of {dataset.short} than it had",
            rule="reclock-history",
            hint=f"ask its operator; if an older state was restored there, delete {self._folder}",
        )


def _read(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while part := file.read(_CHUNK):
            yield part

"""Frees objects that no chain names any more, and never one that may still be needed.

Reachable are objects that blocks of any chain name, those that rows of their slices link to, and those that the caller
adds (evidence). Unreachable ones stay while the store's holds protect them (``chain.store.holds``): those just added,
requested or handed out, or held by a reader. Objects are freed in steps; before each, blocks that came since are read
too. A collection that was killed is simply done again. Memory: 9 bytes an object, however long the chains are. Made for
one collection; the caller decides how often to collect.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

import msgspec

from chain.codec.arrow_schema import schema_of
from chain.codec.blocks import decode_block
from chain.data.object_links import link_columns, links_in
from chain.errors import Environment, NotFound
from chain.ids import DatasetId
from chain.libraries import np
from chain.model.block import Block
from chain.model.events import AddData, ExecuteTransform, SetDataSchema
from chain.multihash import Multihash
from chain.rules.pages import Pages
from chain.state import ChainState
from chain.store.base import NAME_SIZE, PAGE_BYTES, Head, StoredPage
from chain.store.former_epochs import SET_ASIDE
from chain.store.objects import DiskObjects
from chain.store.sqlite import HeadRow, SqliteChain, SqliteChains
from chain.walk import newest_first

if TYPE_CHECKING:
    import numpy.typing as npt

_NAMED: Final = ("event.new_data.physical_hash", "event.new_checkpoint.physical_hash")
STEP: Final = 128
"""Objects freed at once, in one transaction, for which requests of objects have to wait."""
_TOGETHER: Final = 256
"""Blocks of short chains that are checked together."""
_KEY: Final = 8
"""Bytes of a digest that identify objects here. Two objects that share them are freed together or not at all."""


class Collected(msgspec.Struct, frozen=True, kw_only=True):
    objects: int = 0
    bytes: int = 0
    kept: int = 0
    """Unreachable objects that stay for now, as they may be in use."""
    kept_bytes: int = 0


def collect(
    chains: SqliteChains,
    objects: DiskObjects,
    also_reachable: Iterable[Multihash] = (),
    *,
    dry_run: bool = False,
    freed: Callable[[Multihash, int], None] = lambda _name, _size: None,
) -> Collected:
    """Frees objects that nothing needs. ``freed`` is called for each, in a dry run for each that would be freed.

    Raises Environment when a block is damaged: the objects it names are unknown, so nothing is freed until it is
    repaired.
    """
    if not dry_run:
        objects.holds.next_collection()
    marks = _Marks(chains, objects.names())
    for name in also_reachable:
        marks.reach(np.frombuffer(name.digest, np.uint8)[None, :])
    for name in linked_objects(chains, objects):
        marks.reach(np.frombuffer(name.digest, np.uint8)[None, :])
    marks.reach_chains()
    objects.holds.settle(marks.reached)
    done = Collected()
    unreached = (name for name in objects.names() if not marks.reached(name))
    while some := list(islice(unreached, STEP)):
        gone, stay = _free(marks, objects, some, dry_run=dry_run)
        for name, size in gone.items():
            freed(name, size)
        done = Collected(
            objects=done.objects + len(gone),
            bytes=done.bytes + sum(gone.values()),
            kept=done.kept + len(stay),
            kept_bytes=done.kept_bytes + sum(stay.values()),
        )
    return done


def _free(
    marks: _Marks, objects: DiskObjects, some: Sequence[Multihash], *, dry_run: bool
) -> tuple[dict[Multihash, int], dict[Multihash, int]]:
    """Frees one step; returns the objects freed and those that stay, with sizes. Requests wait for one step at most."""
    # New blocks of long chains are read before others have to wait; within the lock only those that came meanwhile.
    marks.reach_chains()
    sizes: dict[Multihash, int] = {}
    for name in some:
        with contextlib.suppress(NotFound):
            sizes[name] = objects.size(name)
    with objects.holds.unless_held(sizes, foreseen=dry_run) as free:
        marks.reach_chains()
        gone = {name: sizes[name] for name in free if not marks.reached(name)}
        if gone and not dry_run:
            objects.remove_all(list(gone))
    return gone, {name: size for name, size in sizes.items() if name not in gone}


def linked_objects(chains: SqliteChains, objects: DiskObjects) -> Iterator[Multihash]:
    """Yields the objects that rows link to. Opens only slices of datasets that ever declared links.

    Raises Invalid for a slice that cannot be read, as its links are unknown. A slice that is not here has no links.
    """
    for dataset in dict.fromkeys(dataset for dataset, _ in chains.histories_having("SetDataSchema")):
        histories = [chain for _, chain in _histories(chains, dataset)]
        declared = [block.event for chain in histories for block in newest_first(chain, ("SetDataSchema",))]
        columns = {
            name for event in declared if isinstance(event, SetDataSchema) for name in link_columns(schema_of(event))
        }
        blocks = (block for chain in histories for block in newest_first(chain, ("AddData", "ExecuteTransform")))
        for block in blocks if columns else ():
            event = block.event
            if isinstance(event, AddData | ExecuteTransform) and event.new_data:
                name = event.new_data.physical_hash
                if objects.has(name):
                    yield from links_in(objects.path(name), tuple(sorted(columns)))


def _histories(chains: SqliteChains, dataset: DatasetId) -> Iterator[tuple[int | None, SqliteChain]]:
    """Yields the chain and its kept former epochs, by number; and one that is set aside."""
    yield None, chains.chain(dataset)
    for epoch in (*chains.former_epochs(dataset), SET_ASIDE):
        yield epoch, chains.former(dataset, epoch)


class _Marks:
    """The objects that existed at the beginning, and which of them are reachable."""

    def __init__(self, chains: SqliteChains, names: Iterable[Multihash]) -> None:
        keys = b"".join(name.digest[:_KEY] for name in names)
        self._keys = np.unique(np.frombuffer(keys, np.uint64))
        self._reached = np.zeros(len(self._keys), np.bool_)
        self._chains = chains
        self._rows: frozenset[HeadRow] = frozenset()
        self._seen: dict[tuple[DatasetId, int | None], Head] = {}

    def reach(self, digests: npt.NDArray[np.uint8]) -> None:
        """Marks the objects with these digests, ``(n, 32)``, as reachable."""
        if len(self._keys):
            keys = np.ascontiguousarray(digests[:, :_KEY]).view(np.uint64)[:, 0]
            places = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
            self._reached[places[self._keys[places] == keys]] = True

    def reached(self, name: Multihash) -> bool:
        """Whether an object is reachable; always for one added after the beginning, which is too young to be freed."""
        key = np.frombuffer(name.digest[:_KEY], np.uint64)[0]
        place = int(np.searchsorted(self._keys, key))
        known = place < len(self._keys) and self._keys[place] == key
        return not known or bool(self._reached[place])

    def reach_chains(self) -> None:
        """Reads the blocks that are new since the last call; all blocks of a chain that was rewritten.

        Unchanged chains cost nothing, and many short ones are read together.
        """
        rows = frozenset(self._chains.head_rows())
        together: list[tuple[DatasetId, StoredPage]] = []
        blocks = size = 0
        for (dataset, epoch), head in map(self._chains.head_of, rows - self._rows):
            chain = self._chains.chain(dataset) if epoch is None else self._chains.former(dataset, epoch)
            head = chain.head() if head is None else head
            if head is None:
                continue
            pages = Pages()
            for page in chain.stored_pages(self._start(dataset, epoch, chain, head), head.size):
                if len(page.raws) >= _TOGETHER:
                    self._reach_pages(pages, [(dataset, page)])
                    continue
                together.append((dataset, page))
                blocks, size = blocks + len(page.raws), size + sum(map(len, filter(None, page.raws)))
                if blocks >= _TOGETHER or size >= PAGE_BYTES:
                    self._reach_pages(Pages(), together)
                    together, blocks, size = [], 0, 0
            self._seen[dataset, epoch] = head
        if together:
            self._reach_pages(Pages(), together)
        self._rows = rows

    def _start(self, dataset: DatasetId, epoch: int | None, chain: SqliteChain, head: Head) -> int:
        """Returns the number of the first block that was not read yet."""
        seen = self._seen.get((dataset, epoch))
        if seen is None or seen.size > head.size:
            return 0
        before = next(chain.stored_blocks(seen.sequence_number, seen.size), None)
        return seen.size if before is not None and before.name == seen.hash else 0

    def _reach_pages(self, pages: Pages, together: Sequence[tuple[DatasetId, StoredPage]]) -> None:
        names = np.frombuffer(b"".join(page.names for _, page in together), np.uint8).reshape(-1, NAME_SIZE)
        raws = [raw for _, page in together for raw in page.raws]
        found = pages.sort(names[:, 2:], raws)
        if not found.intact.all():
            at = int(np.flatnonzero(~found.intact)[0])
            places = [(dataset, page.start + number) for dataset, page in together for number in range(len(page.raws))]
            dataset, number = places[at]
            raise Environment(
                f"block #{number} of {dataset.short} is damaged: what it names is not known, so nothing is freed",
                rule="stored-block-damaged",
                hint="see what else is: odfctl verify; then fetch it again from a peer",
            )
        for stretch in found.stretches:
            if stretch.groups:
                run = found.run(stretch, ChainState.EMPTY)
                for path in _NAMED:
                    column = run.digests(path)
                    self.reach(column.values[column.present])
            else:
                for raw in raws[stretch.start : stretch.stop]:
                    for name in _named(decode_block(raw or b"")):
                        self.reach(np.frombuffer(name.digest, np.uint8)[None, :])


def _named(block: Block) -> Iterator[Multihash]:
    event = block.event
    if isinstance(event, AddData | ExecuteTransform):
        if event.new_data is not None:
            yield event.new_data.physical_hash
        if event.new_checkpoint is not None:
            yield event.new_checkpoint.physical_hash

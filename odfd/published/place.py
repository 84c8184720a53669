"""Reads one place where a dataset is published: it gives blocks and objects as a holder among peers does.

What it gives is checked by the same sinks as that of peers, so that mirrors notice no difference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import aclosing
from itertools import islice
from typing import Final

import trio

from chain.errors import Invalid, NotFound, Remote
from chain.ids import DatasetId
from chain.multihash import Multihash
from chain.statements.tree import Frontier
from chain.store.layout import DirectoryChain
from odfd.published.source import Edition, PublishedSource, as_written
from p2p.pace import Pace
from p2p.ports import ChainSink, ObjectSink, PeerId, TreeRoot
from p2p.web.client import pace_parts

BATCH: Final = 1024
"""Blocks passed to a sink at once."""
WRITE: Final = 1 << 20
"""Bytes passed to a sink at once; a place that breaks off after fewer is not used for now."""


class PublishedPlace:
    """The last observed state of a place. ``forget`` is called when it proves wrong."""

    def __init__(
        self,
        place: str,
        source: PublishedSource,
        root: str,
        edition: Edition | None,
        forget: Callable[[PeerId], object],
    ) -> None:
        self.source = source
        self.root = root
        self.edition = edition
        self.peer = PeerId(place)
        """Represents the place among peers; no peer can have this id."""
        self.answers = edition is not None
        """Whether it answered the last request; otherwise it is not listed among peers."""
        self._forget = forget

    def chain_size(self, dataset: DatasetId) -> int:
        edition = self._edition_of(dataset)
        return 0 if edition is None else edition.head.size

    async def object_size(self, name: Multihash) -> int | None:
        return await self.source.object_size(self.root, name)

    async def fetch_blocks(self, dataset: DatasetId, start: int, max_bytes: int) -> Sequence[bytes]:
        edition = self._edition_of(dataset)
        if edition is None:
            return []
        chain = await self._stage(edition, start)

        def read() -> list[bytes]:
            blocks: list[bytes] = []
            room = max_bytes
            for raw in chain.raw_blocks(start, edition.head.size):
                room -= len(raw)
                if blocks and room < 0:
                    break
                blocks.append(raw)
            return blocks

        try:
            return await trio.to_thread.run_sync(read)
        except (Invalid, NotFound) as fault:
            raise Remote(f"{as_written(self.root)}: {fault.message}", rule=fault.rule) from fault

    async def pull_chain(self, dataset: DatasetId, size: int, sink: ChainSink, pace: Pace) -> None:
        edition = self._edition_of(dataset)
        if edition is None:
            raise Remote(f"{dataset.short} is not known to be at {as_written(self.root)}", rule="no-peer")
        try:
            await self._fill(edition, size, sink, pace)
        except Invalid as fault:
            raise await self._disown(edition, fault) from fault

    async def prove_prefix(self, dataset: DatasetId, old: TreeRoot, signed: TreeRoot) -> bool:
        edition = self._edition_of(dataset)
        if edition is None:
            return False
        chain = await self._stage(edition, 0)

        def holds() -> bool:
            leaves = (Multihash.sha3_256(raw).digest for raw in chain.raw_blocks(0, signed.size))
            tree = Frontier().extend(islice(leaves, old.size))
            return tree.root == old.root and tree.extend(leaves).root == signed.root

        return await trio.to_thread.run_sync(holds)

    async def fetch_object(self, name: Multihash, size: int, sink: ObjectSink, pace: Pace) -> None:
        """Fetches an object, again after each interruption if at least ``WRITE`` bytes came since the last one."""
        while True:
            before = sink.received
            try:
                await self._fetch_rest(name, size, sink, pace)
                break
            except Remote:
                if sink.received < before + WRITE:
                    raise
        try:
            await trio.to_thread.run_sync(sink.finish)
        except Invalid as fault:
            raise Remote(f"{as_written(self.root)} gave wrong bytes: {fault.message}", rule=fault.rule) from fault

    def _edition_of(self, dataset: DatasetId) -> Edition | None:
        edition = self.edition
        return edition if edition is not None and edition.head.dataset == dataset else None

    async def _stage(self, edition: Edition, first: int) -> DirectoryChain:
        head = edition.head
        try:
            return await self.source.stage(head.dataset.multibase, edition.root, head.head, first)
        except Invalid as fault:
            raise await self._disown(edition, fault) from fault

    async def _disown(self, edition: Edition, fault: Invalid) -> Remote:
        self._forget(self.peer)
        await self.source.forget(edition.head.dataset.multibase)
        return Remote(
            f"what is published under {as_written(edition.root)} does not hold: {fault.message}", rule=fault.rule,
            hint="its owner has to publish it again, or the server lies",
        )  # fmt: skip

    async def _fill(self, edition: Edition, size: int, sink: ChainSink, pace: Pace) -> None:
        start, whole = sink.size, edition.head.size
        if whole - start <= self.source.few:
            few = await self.source.last_blocks(edition.root, edition.head.head, whole - start)
            if few is not None:
                pace.take(sum(map(len, few)), trio.current_time())
                await trio.to_thread.run_sync(sink.append, self.peer, start, few[: size - start])
                await trio.to_thread.run_sync(sink.finish)
                return
        chain = await self._stage(edition, start)

        def show() -> int:
            raws, count = chain.raw_blocks(start, size), 0
            while page := list(islice(raws, BATCH)):
                sink.append(self.peer, sink.size, page)
                count += sum(map(len, page))
            sink.finish()
            return count

        # The blocks came in one piece, for which later transfers have to wait.
        pace.take(await trio.to_thread.run_sync(show), trio.current_time())
        if size == whole:
            await self.source.forget(edition.head.dataset.multibase)

    async def _fetch_rest(self, name: Multihash, size: int, sink: ObjectSink, pace: Pace) -> None:
        if sink.received == size:
            return
        at = as_written(self.root)
        waiting = bytearray()
        async with (
            self.source.object_from(self.root, name, sink.received) as parts,
            aclosing(pace_parts(parts, pace)) as slowed,
        ):
            try:
                async for part in slowed:
                    # Sizes that a server states are hints (test_a_web_server_that_lies_achieves_nothing).
                    if sink.received + len(waiting) + len(part) > size:
                        raise Remote(f"{at} gives more of {name.short} than it has", rule="object-size")
                    if not waiting and len(part) >= WRITE:  # as those of buckets are: they are not copied again
                        await trio.to_thread.run_sync(sink.write, part)
                        continue
                    waiting += part
                    if len(waiting) >= WRITE:
                        await trio.to_thread.run_sync(sink.write, bytes(waiting))
                        waiting.clear()
            finally:
                with trio.CancelScope(shield=True):
                    # What came stays for the next attempt, also if this one is cancelled.
                    if sink.received + len(waiting) <= size:
                        await trio.to_thread.run_sync(sink.write, bytes(waiting))
        if sink.received < size:
            raise Remote(f"{at} ended in the middle of {name.short}", rule="object-size")

"""Lists and finds blocks of datasets; of several shards, in one order: newest first, then by shard.

An id means one chain; a name all shards. Within a chain a block is named by its number or its hash, in several by its
hash alone. Spec: docs/spec/collections.md#shards.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final

from chain.codec.manifest import block_to_builtins
from chain.errors import Invalid, NotFound
from chain.instant import Instant
from chain.model.block import Block
from chain.multihash import Multihash
from chain.store.append import BLOCK_UNKNOWN
from chain.store.base import ChainReader
from chain.store.schema import KINDS
from chain.store.sqlite import SqliteChain
from chain.wording import plural
from odfd.control import wire
from odfd.datasets.shard_reading import resolve_chains
from odfd.runtime.hanging_calls import end_if_unwanted
from odfd.services.views.views import DatasetViews, block_view, newest_of
from odfd.store.catalog import DatasetEntry
from odfd.store.directory import StateDirectory

MAX_LOG: Final = 10_000
"""Most blocks that one call of ``log`` returns."""
MAX_DIGITS: Final = 18
"""Most digits of a sequence number: the largest that SQLite holds has 19."""
_NUMBER: Final = "block-number"


class BlockReader:
    """Reads blocks of one node's datasets. Blocking."""

    def __init__(self, home: StateDirectory, views: DatasetViews) -> None:
        self._home, self._views = home, views

    def log(
        self, ref: str, kinds: Sequence[str], limit: int, before: str | None, epoch: int | None
    ) -> Sequence[wire.BlockView]:
        """Lists at most ``limit`` blocks, newest first, after the block ``before`` in that order.

        ``before``: its number in one chain, or its hash. Raises NotFound, Invalid.
        """
        limit = min(limit, MAX_LOG)
        entries = resolve_chains(self._home, ref)
        chains = self._chains(entries, epoch)
        ends = _ends(entries[0].name, [chain for _, chain in chains], before)
        logs = {
            str(entry.name): self._newest(entry, chain, end, kinds, limit, epoch)
            for (entry, chain), end in zip(chains, ends, strict=True)
        }
        return newest_of(logs, limit) if len(entries) > 1 else logs[str(entries[0].name)]

    def block(self, ref: str, at: str) -> wire.BlockDetail:
        """Shows a block, also one that a later epoch gave up. Raises NotFound, Invalid."""
        entries = resolve_chains(self._home, ref)
        if len(entries) > 1:
            _check_hash(entries[0].name, len(entries), at)
        entry, block, epoch = self._find(entries, at)
        return wire.BlockDetail(
            former_epoch=epoch,
            hash=str(block.hash),
            manifest_version=block.version,
            size=len(block.raw),
            manifest=block_to_builtins(block),
            unknown_fields=block.unknown_fields,
            shard=entry.name if len(entries) > 1 else None,
        )

    def _chains(self, entries: Sequence[DatasetEntry], epoch: int | None) -> list[tuple[DatasetEntry, SqliteChain]]:
        """Returns the chains to list; of a former epoch those that have kept blocks of it. Raises NotFound."""
        if epoch is None:
            return [(entry, self._home.chains.chain(entry.id)) for entry in entries]
        having = [entry for entry in entries if epoch in self._home.chains.former_epochs(entry.id)]
        return [(each, self._former(each, epoch)) for each in having or entries]

    def _former(self, entry: DatasetEntry, epoch: int) -> SqliteChain:
        """Returns the kept blocks of a former epoch as a chain. Raises NotFound."""
        kept = self._home.chains.former_epochs(entry.id)
        if epoch not in kept:
            known = (
                f"kept are those of {', '.join(map(str, kept))}" if kept else "none are; see policy.rewrite.keep-epochs"
            )
            raise NotFound(
                f"no blocks of epoch {epoch} of {entry.name} are kept that a later one dropped",
                rule="former-epoch",
                hint=known,
            )
        return self._home.chains.former(entry.id, epoch)

    def _newest(
        self, entry: DatasetEntry, chain: SqliteChain, end: int, kinds: Sequence[str], limit: int, epoch: int | None
    ) -> Sequence[wire.BlockView]:
        """Lists the newest blocks with a number below ``end``."""
        if not kinds:
            first = max(0 if epoch is None else chain.first(), end - limit)
            blocks = [chain.block_at(number) for number in range(end - 1, first - 1, -1)]
        else:
            blocks = list(islice(_back(chain, kinds, end), limit))
        return self._views.blocks(entry.id, blocks) if epoch is None else [block_view(block) for block in blocks]

    def _find(self, entries: Sequence[DatasetEntry], at: str) -> tuple[DatasetEntry, Block, int | None]:
        """Returns the block of a chain, or else of the newest former epoch that has it, with that epoch.

        Raises NotFound.
        """
        chains = self._home.chains
        fault: NotFound | None = None
        for entry in entries:
            try:
                return entry, named_block(chains.chain(entry.id), at), None
            except NotFound as unknown:
                if unknown.rule != BLOCK_UNKNOWN:
                    raise
                fault = unknown
        for entry in entries:
            for epoch in reversed(chains.former_epochs(entry.id)):
                with suppress(NotFound):
                    return entry, named_block(chains.former(entry.id, epoch), at), epoch
        assert fault is not None, "a dataset has a chain"
        raise fault


def named_block(chain: ChainReader, at: str) -> Block:
    """Returns a block by its hash, or by its number as ``#N`` or ``N``. Raises NotFound, Invalid."""
    if (digits := _digits(at)) is not None:
        size = head.size if (head := chain.head()) else 0
        if len(digits) > MAX_DIGITS or int(digits) >= size:
            hint = f"the chain has {plural(size, 'block')}"
            raise NotFound(f"there is no block #{digits[:40]}", rule=_NUMBER, hint=hint)
        return chain.block_at(int(digits))
    if at.startswith("#"):
        raise Invalid(f"not a block number: {at[:40]!r}", rule=_NUMBER, hint="#0 is the first block")
    return chain.block_by_hash(Multihash.parse(at))


def _digits(at: str) -> str | None:
    """Returns the digits of a block's number, written as ``#N`` or ``N``; ``None`` for anything else."""
    number = at.removeprefix("#")
    return number if number.isascii() and number.isdecimal() else None


def _check_hash(name: str, shards: int, at: str) -> None:
    """Raises Invalid for a number, which means a block in each shard."""
    if (number := _digits(at)) is not None:
        raise Invalid(
            f"{name} has {shards} shards, and each has a block #{number[:40]}",
            rule=_NUMBER,
            hint="say the hash of the block; or the id of one shard: odfctl get renditions -o json lists them",
        )


def _ends(name: str, chains: Sequence[SqliteChain], before: str | None) -> list[int]:
    """Returns for each chain the number of its blocks that are listed after ``before``; all blocks for ``None``."""
    sizes = [0 if (head := chain.head()) is None else head.size for chain in chains]
    if before is None:
        return sizes
    if len(chains) == 1:
        if (number := _digits(before)) is not None:
            return [min(int(number[: MAX_DIGITS + 1]), sizes[0])]
        return [named_block(chains[0], before).sequence_number]
    _check_hash(name, len(chains), before)
    place, found = _find_placed(name, chains, before)
    # Of blocks of one time those of earlier shards are listed first.
    ends = [
        _count(chain, size, found.system_time, also=each > place)
        for each, (chain, size) in enumerate(zip(chains, sizes, strict=True))
    ]
    ends[place] = found.sequence_number
    return ends


def _find_placed(name: str, chains: Sequence[SqliteChain], at: str) -> tuple[int, Block]:
    """Returns a block by its hash, and the place of the chain that has it. Raises NotFound, Invalid."""
    wanted = Multihash.parse(at)
    for place, chain in enumerate(chains):
        with suppress(NotFound):
            return place, chain.block_by_hash(wanted)
    raise NotFound(f"no shard of {name} has the block {at[:200]}", rule=BLOCK_UNKNOWN, hint=f"odfctl log {name}")


def _count(chain: SqliteChain, size: int, time: Instant, *, also: bool) -> int:
    """Counts the blocks before a time; with ``also`` those of that time too. Times of a chain never fall."""
    bisect = bisect_right if also else bisect_left
    return bisect(range(size), time, lo=min(chain.first(), size), key=lambda number: chain.block_at(number).system_time)


def _back(chain: ChainReader, kinds: Sequence[str], before: int) -> Iterator[Block]:
    """Yields blocks of these kinds, newest first. Raises Invalid for an unknown kind."""
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        raise Invalid(f"{unknown[0]!r} is not an event", rule="event-kind", hint=f"one of {', '.join(KINDS)}")
    while (block := chain.last_of(kinds, before)) is not None:
        end_if_unwanted()
        before = block.sequence_number
        yield block

"""Reads the block files of a folder, and walks through them from a chain's head back to its Seed.

Files are named by hash, so each block names the file of the one below it. Blocks in a row look alike: where the link
was in a block of some size, it is guessed to be in the next of that size, and the guess holds if there is a file of
that name. A guess only saves work: the walk finds a list of names, and readers of the blocks check hashes and links. A
damaged block does not end the walk as long as its neighbours can be determined. Made for one reading of a folder, with
all names, packed, and some blocks in memory.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, overload

from chain.codec.blocks import MAX_BLOCK, Link, read_link
from chain.errors import Invalid
from chain.libraries import np
from chain.multihash import SHA3_256, Multihash
from chain.store.base import NAME_SIZE
from chain.store.files import disk

KEPT: Final = 64 << 20
"""Bytes of blocks that stay in memory after they were read."""
_FIRST_READ: Final = 1 << 16
"""Bytes read first, which hardly a block exceeds; asking for the limit would cost 16 MiB of memory each time."""
_MAX_PLACES: Final = 4096
_FIRST_LOOK: Final = 1 << 16
"""Number of names after which a walk is checked for a ring, and again whenever it has doubled."""
_SHA3: Final = bytes(Multihash.from_digest(SHA3_256, bytes(32))[:2])


class BlockFiles:
    """The blocks of a folder of block files, by hash.

    Keeps the blocks read last, so that a chain of ordinary length is read from disk once.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._prefix = f"{folder}{os.sep}"
        # An OrderedDict: finding the first key of a plain dict visits every place from which one was removed before.
        self._kept: OrderedDict[Multihash, bytes] = OrderedDict()
        self._room = KEPT

    def read(self, name: Multihash) -> bytes | None:
        """Returns the file's bytes, unchecked and cut one byte past the limit of a block; ``None`` without a file."""
        raw = self._kept.get(name)
        if raw is None:
            with disk(self._folder):
                raw = self._load(name)
            if raw is not None:
                self._keep(name, raw)
        return raw

    def _load(self, name: Multihash) -> bytes | None:
        # Once for each block of a chain: without an object for the file, opening and reading take half the time.
        try:
            file = os.open(f"{self._prefix}{name}", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            raw = os.read(file, _FIRST_READ)
            while len(raw) <= MAX_BLOCK and (more := len(raw) >= _FIRST_READ and os.read(file, MAX_BLOCK)):
                raw += more
        except IsADirectoryError:
            return None
        finally:
            os.close(file)
        return raw[: MAX_BLOCK + 1]

    def _keep(self, name: Multihash, raw: bytes) -> None:
        """Keeps a block, and drops the ones read first when room is short: a walk ends at the blocks needed next."""
        self._kept[name] = raw
        self._room -= len(raw)
        while self._room < 0:
            self._room += len(self._kept.popitem(last=False)[1])

    def names(self) -> Iterator[Multihash]:
        """Yields the names of all block files, on the chain or not; none without a folder."""
        if not self._folder.is_dir():
            return
        with disk(self._folder):
            for file in sorted(self._folder.iterdir()):
                if not file.name.startswith("."):
                    try:
                        yield Multihash.parse(file.name)
                    except Invalid:
                        continue


class Names(Sequence[Multihash]):
    """Names of blocks in the order of a chain, packed: a list of them would take three times the memory."""

    def __init__(self, packed: bytes | bytearray | memoryview = b"") -> None:
        self.packed: Final = memoryview(packed)

    def __len__(self) -> int:
        return len(self.packed) // NAME_SIZE

    @overload
    def __getitem__(self, place: int) -> Multihash: ...

    @overload
    def __getitem__(self, place: slice) -> Names: ...

    def __getitem__(self, place: int | slice) -> Multihash | Names:
        if isinstance(place, slice):
            start, stop, step = place.indices(len(self))
            assert step == 1, "a stretch of a chain"
            return Names(self.packed[start * NAME_SIZE : stop * NAME_SIZE])
        at = range(len(self))[place] * NAME_SIZE
        return Multihash(self.packed[at : at + NAME_SIZE])

    def __iter__(self) -> Iterator[Multihash]:
        for at in range(0, len(self.packed), NAME_SIZE):
            yield Multihash(self.packed[at : at + NAME_SIZE])


def walk(files: BlockFiles, head: Multihash | None) -> tuple[int, Names]:
    """Walks from the head down; returns the number of the first block reached, and the names from there to the head."""
    return _Walk(files).run(head)


def _repeated(names: bytes | bytearray) -> int:
    """Returns how many names at the beginning occur again later, since files may name each other in a ring."""
    rows = np.frombuffer(names, np.uint8).reshape(-1, NAME_SIZE)
    some = np.ascontiguousarray(rows[:, len(_SHA3) : len(_SHA3) + 8]).view(np.uint64).ravel()
    if len(np.unique(some)) == len(rows):
        return 0
    _, firsts = np.unique(np.ascontiguousarray(rows).view(f"S{NAME_SIZE}").ravel(), return_index=True)
    firsts.sort()
    moved = np.flatnonzero(firsts != np.arange(len(firsts)))
    return len(rows) - int(moved[0] if len(moved) else len(firsts))


class _Walk:
    def __init__(self, files: BlockFiles) -> None:
        self._files = files
        self._whole: dict[int, list[Multihash]] | None = None
        self._places: dict[int, int] = {}
        """Position of the link in the last block of each size."""

    def run(self, head: Multihash | None) -> tuple[int, Names]:
        names = bytearray()
        number: int | None = None
        name, look, again = head, _FIRST_LOOK, 0
        while name is not None and not again:
            names += name
            number, name = self._next(name, number)
            if len(names) == look * NAME_SIZE:
                look, again = 2 * look, _repeated(names)
        again = again or _repeated(names)
        back = np.frombuffer(names, np.uint8).reshape(-1, NAME_SIZE)[: len(names) // NAME_SIZE - again]
        return max(0, (number if number is not None else -1) + 1 + again), Names(back[::-1].tobytes())

    def _next(self, name: Multihash, number: int | None) -> tuple[int | None, Multihash | None]:
        """Returns number and name of the block before this one, whose number should be ``number``."""
        raw = self._files.read(name)
        if number and raw is not None and (below := self._guess(raw)) is not None:
            return number - 1, below
        link = self._link(raw)
        if link is None or (link.hash != name and not self._plausible(link, number)):
            return self._below(number)
        # A block that claims to be the first ends the walk, even if it names a predecessor: the rules report that.
        first = link.sequence_number == 0 and link.hash == name
        return link.sequence_number - 1, None if first else link.prev_block_hash

    def _guess(self, raw: bytes) -> Multihash | None:
        place = self._places.get(len(raw))
        if place is None or raw[place : place + len(_SHA3)] != _SHA3:
            return None
        name = Multihash(raw[place : place + NAME_SIZE])
        return name if self._files.read(name) is not None else None

    def _link(self, raw: bytes | None) -> Link | None:
        """Returns the link that a block states, even if it does not hash to its name; ``None`` if unreadable."""
        if raw is None:
            return None
        try:
            link = read_link(raw)
        except Invalid:
            return None
        if link.prev_block_hash is not None and len(self._places) < _MAX_PLACES:
            self._places[len(raw)] = raw.find(link.prev_block_hash)
        return link

    def _plausible(self, link: Link, number: int | None) -> bool:
        """Whether the link of a damaged block can still be followed."""
        if number is not None and link.sequence_number != number:
            return False
        return link.prev_block_hash is None or self._files.read(link.prev_block_hash) is not None

    def _below(self, number: int | None) -> tuple[int | None, Multihash | None]:
        """Returns number and name of the only intact block that can be below a damaged one, if there is just one."""
        if self._whole is None:
            self._whole = {}
            for name in self._files.names():
                link = self._link(self._files.read(name))
                if link is not None and link.hash == name:
                    self._whole.setdefault(link.sequence_number, []).append(name)
        below = max(self._whole, default=None) if number is None else number - 1
        found = self._whole.get(below, []) if below is not None else []
        return below, found[0] if len(found) == 1 else None

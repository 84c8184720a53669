"""Reads and writes the ODF directory layout ``refs/head blocks/ data/ checkpoints/``, and kamu's workspace folders.

``DirectoryChain`` and ``DirectoryObjects`` read a folder of any origin; ``DirectoryWriter`` makes one, each file under
a staging name with a leading dot and then renamed, the head last. Block files are named by hash, so a place in the
chain is found by walking back from the head once (``blockfiles``). ``info/`` belongs to the workspace, and only the
name is read from it. Spec: Recommended Dataset Layout.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from chain.codec.blocks import decode_block
from chain.errors import Conflict, Invalid, NotFound
from chain.model.block import Block
from chain.multihash import Multihash
from chain.store import durable
from chain.store.append import no_block
from chain.store.base import PAGE_BLOCKS, PAGE_BYTES, Head, Snapshot, Step, StoredBlock, StoredPage, no_step
from chain.store.blockfiles import BlockFiles, Names, walk
from chain.store.files import ObjectDamaged, check_file, disk, make_folder
from chain.store.schema import kind_name

BLOCKS, DATA, CHECKPOINTS, HEAD = "blocks", "data", "checkpoints", "refs/head"
PARTS: Final = ("refs", BLOCKS, DATA, CHECKPOINTS)
"""The folders of a dataset."""
_MAX_REF: Final = 256
"""Most bytes of a reference file."""


def is_dataset(directory: Path) -> bool:
    return (directory / HEAD).is_file()


def read_head(directory: Path) -> Multihash | None:
    """Reads the hash in ``refs/head``; ``None`` when there is no such file. Raises Invalid when it is not a hash."""
    file = directory / HEAD
    with disk(file):
        if not file.is_file():
            return None
        with file.open("rb") as opened:
            text = opened.read(_MAX_REF)
    try:
        return Multihash.parse(text.decode("ascii").strip())
    except (Invalid, UnicodeDecodeError) as error:
        raise Invalid(
            f"{file} does not hold a block's hash", rule="layout-head", hint="it holds one line, f1620 and 64 digits"
        ) from error


def not_a_dataset(directory: Path, name: str) -> NotFound:
    """Makes the fault for a folder without a dataset; ``name``: as a person wrote it."""
    hint = "name the folder that holds refs, blocks and data"
    with disk(directory):
        if not directory.exists():
            return NotFound(f"there is no folder {name}", rule="layout-dataset", hint=hint)
        if not directory.is_dir():
            hint = f"{hint}; for a file of rows: odfctl new NAME FILE"
            return NotFound(f"{name} is a file, not the folder of a dataset", rule="layout-dataset", hint=hint)
    return NotFound(f"{name} is not a dataset: it has no {HEAD}", rule="layout-dataset", hint=hint)


def block_names(directory: Path) -> Iterator[Multihash]:
    """Yields the names of all block files of a folder, on its chain or not."""
    return BlockFiles(directory / BLOCKS).names()


class DirectoryChain:
    """The chain of a folder: a ChainReader, and a StoredChain for verification.

    The walk is made when first needed and kept: 34 bytes a block, and the blocks themselves while they are few. If the
    folder changes meanwhile, the old chain is still read.
    """

    def __init__(self, directory: Path) -> None:
        """Opens a folder. Raises NotFound when it is not a dataset."""
        if not is_dataset(directory):
            raise not_a_dataset(directory, str(directory))
        self._directory = directory
        self._files = BlockFiles(directory / BLOCKS)
        self._first = 0
        self._names: Names | None = None

    def snapshot(self) -> Snapshot | None:
        head = self.head()
        return None if head is None else Snapshot(head)

    def stored_blocks(self, start: int = 0, stop: int | None = None) -> Iterator[StoredBlock]:
        names = self._walked()
        end = self._first + len(names)
        for number in range(max(start, self._first), end if stop is None else min(stop, end)):
            name = names[number - self._first]
            yield StoredBlock(number, name, self._files.read(name))

    def stored_pages(self, start: int = 0, stop: int | None = None) -> Iterator[StoredPage]:
        names: list[bytes] = []
        raws: list[bytes | None] = []
        first = size = 0
        for stored in self.stored_blocks(start, stop):
            first = first if raws else stored.sequence_number
            names.append(stored.name)
            raws.append(stored.raw)
            size += len(stored.raw or b"")
            if len(raws) == PAGE_BLOCKS or size >= PAGE_BYTES:
                yield StoredPage(first, b"".join(names), raws)
                names, raws, size = [], [], 0
        if raws:
            yield StoredPage(first, b"".join(names), raws)

    def head(self) -> Head | None:
        names = self._walked()
        return Head(names[-1], self._first + len(names) - 1) if names else None

    def block_at(self, sequence_number: int) -> Block:
        names = self._walked()
        if not self._first <= sequence_number < self._first + len(names):
            raise no_block(f"#{sequence_number} in {self._directory}")
        return self.block_by_hash(names[sequence_number - self._first])

    def block_by_hash(self, block_hash: Multihash) -> Block:
        """Returns the block of a hash. Raises NotFound, Invalid when the file's bytes are not that block."""
        return decode_block(self._whole(block_hash))

    def raw_blocks(self, start: int, stop: int) -> Iterator[bytes]:
        return map(self._whole, self._walked()[max(0, start - self._first) : max(0, stop - self._first)])

    def last_of(self, kinds: Iterable[str], before: int | None = None) -> Block | None:
        """Searches backwards block by block, as folders have no index."""
        wanted = set(kinds)
        names = self._walked()
        end = self._first + len(names)
        for number in range((end if before is None else min(before, end)) - 1, self._first - 1, -1):
            block = self.block_at(number)
            if kind_name(block.event) in wanted:
                return block
        return None

    def _walked(self) -> Names:
        if self._names is None:
            self._first, self._names = walk(self._files, read_head(self._directory))
        return self._names

    def _whole(self, name: Multihash) -> bytes:
        """Returns the block's bytes. Raises NotFound, Invalid when their hash is another."""
        raw = self._files.read(name)
        if raw is None:
            raise no_block(f"{name.short} in {self._directory}")
        actual = Multihash.sha3_256(raw)
        if actual != name:
            raise Invalid(
                f"the file of block {name.short} hashes to {actual.short}",
                rule="block-hash",
                hint="the copy is damaged: fetch it again",
                place=str(self._directory),
            )
        return raw


class DirectoryObjects:
    """The objects of a folder, as an ObjectReader."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def has(self, name: Multihash) -> bool:
        return any(file.is_file() for file in self._files(name))

    def size(self, name: Multihash) -> int:
        return self.path(name).stat().st_size

    def path(self, name: Multihash) -> Path:
        for file in self._files(name):
            if file.is_file():
                return file
        raise NotFound(f"no object {name.short} in {self._directory}", rule="object-unknown")

    def content(self, name: Multihash) -> Path:
        return self.path(name)

    def _files(self, name: Multihash) -> tuple[Path, Path]:
        return self._directory / DATA / str(name), self._directory / CHECKPOINTS / str(name)


class DirectoryWriter:
    """Makes or continues a folder. Files become visible one by one, and the dataset by ``set_head``.

    Staging files of an interrupted writer are deleted when the next one is made.
    """

    def __init__(self, directory: Path, step: Step = no_step) -> None:
        """Makes the folders. Raises Environment when that fails."""
        self._directory = directory
        self._step = step
        with disk(directory):
            for folder in PARTS:
                make_folder(directory / folder)
                for left in (*(directory / folder).glob(".f1620*"), *(directory / folder).glob(".head*")):
                    left.unlink()
        step("folder-made")

    def add_block(self, name: Multihash, raw: bytes) -> None:
        target = self._directory / BLOCKS / str(name)
        if not _is_whole(target, name):
            self._place(target, raw)

    def add_object(self, folder: str, name: Multihash, source: Path) -> None:
        """Copies a file's bytes to ``folder`` (DATA or CHECKPOINTS)."""
        target = self._directory / folder / str(name)
        with disk(target):
            if not _is_whole(target, name):
                staged = target.with_name("." + target.name)
                shutil.copyfile(source, staged)
                self._step("folder-object-written")
                staged.rename(target)
                self._step("folder-object-renamed")

    def set_head(self, name: Multihash, expected: Multihash | None) -> None:
        """Moves ``refs/head`` once everything before is on disk. Raises Conflict when it is not as expected."""
        actual = read_head(self._directory)
        if actual != expected:
            raise Conflict(
                f"the head of {self._directory} is {actual.short if actual else 'not there'}",
                rule="compare-and-append",
                hint="someone else wrote to this folder: try again",
            )
        with disk(self._directory):
            durable.sync_filesystem(self._directory)
            self._step("folder-synced")
            durable.write(self._directory / HEAD, str(name).encode(), mode=None)
            self._step("folder-durable")

    def _place(self, target: Path, data: bytes) -> None:
        staged = target.with_name("." + target.name)
        with disk(target):
            staged.write_bytes(data)
            self._step("folder-file-written")
            staged.rename(target)
            self._step("folder-file-renamed")


def _is_whole(file: Path, name: Multihash) -> bool:
    """Whether an interrupted writer left this file, with all its bytes."""
    # A power failure may keep a file's name and size, and lose what was in it.
    try:
        check_file(file, name)
    except (NotFound, ObjectDamaged):
        return False
    return True

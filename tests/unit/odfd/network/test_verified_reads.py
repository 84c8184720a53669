"""What a disk has changed is not sent on: each byte is hashed on its way, of small objects and of large ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chain.multihash import Multihash
from chain.store.files import ObjectDamaged
from chain.store.objects import SMALL
from odfd.network.library import PART, VerifiedReads


class Files:
    """Objects as files, which a test may damage."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, data: bytes) -> Multihash:
        name = Multihash.sha3_256(data)
        self.path(name).write_bytes(data)
        return name

    def path(self, name: Multihash) -> Path:
        return self._folder / str(name)

    def size(self, name: Multihash) -> int:
        return self.path(name).stat().st_size

    def read(self, name: Multihash) -> bytes:
        return self.path(name).read_bytes()

    def flip(self, name: Multihash, at: int) -> None:
        raw = bytearray(self.read(name))
        raw[at] ^= 1
        self.path(name).write_bytes(raw)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def read(reads: VerifiedReads, name: Multihash, offset: int, count: int) -> bytes:
    into = bytearray(count)
    _, got = reads.read(name, offset, memoryview(into))
    return bytes(into[:got])


def test_a_small_object_that_was_changed_is_not_given(files: Files) -> None:
    store: Any = files
    reads, data = VerifiedReads(store), bytes(range(200))
    name = files.add(data)
    assert (reads.size(name), read(reads, name, 10, 20)) == (200, data[10:30])
    files.flip(name, 199)
    for asked in (lambda: reads.size(name), lambda: read(reads, name, 0, 5), lambda: reads.small(name)):
        with pytest.raises(ObjectDamaged):
            asked()


@pytest.mark.slow
def test_a_part_of_a_large_object_that_was_changed_after_it_was_looked_at_is_not_given(files: Files) -> None:
    """Only the MiBs that are asked for are read again; the whole is hashed anew once one was found damaged."""
    store: Any = files
    reads, data = VerifiedReads(store), bytes(SMALL) + b"x" * (2 * PART) + b"end"
    name = files.add(data)
    assert read(reads, name, PART - 3, 7) == data[PART - 3 : PART + 4]
    files.flip(name, PART + 9)
    assert read(reads, name, 0, 10) == data[:10], "this part is what it was"
    for count in (1, PART):
        with pytest.raises(ObjectDamaged):
            read(reads, name, PART, count)
    files.flip(name, PART + 9)
    assert read(reads, name, PART, 20) == data[PART : PART + 20], "it was mended"


def test_a_large_object_that_is_damaged_from_the_start_is_never_given(files: Files) -> None:
    store: Any = files
    reads = VerifiedReads(store)
    name = files.add(bytes(SMALL + 1))
    files.flip(name, SMALL)
    with pytest.raises(ObjectDamaged):
        read(reads, name, 0, 1)

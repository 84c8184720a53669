"""What a node sends is proven: roots of trees, and bytes of the disk."""

from __future__ import annotations

import hashlib
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chain.ids import DatasetId
from chain.multihash import Multihash
from chain.statements.tree import GROUP, Frontier, Tree, is_consistent, root_from_inclusion
from chain.store import schema
from chain.store.database import Database
from chain.store.files import ObjectDamaged
from chain.store.objects import SMALL
from odfd.network.library import PART, VerifiedReads
from odfd.network.tree_proofs import TreeProofs
from odfd.store.ledger.log import ROOM, STEPS, CheckedChain, Ledger

# Proofs from a database: right at every size while the chain grows, and right again after it was rewritten.

DATASET = DatasetId.from_public_key(b"p" * 32)


def leaf(text: str) -> bytes:
    return hashlib.sha3_256(text.encode()).digest()


class Hashes(TreeProofs):
    """A prover over a list in place of a table."""

    def __init__(self) -> None:
        super().__init__(None)  # type: ignore[arg-type]
        self.names: list[bytes] = []
        self.read = 0

    def _digests(self, dataset: DatasetId, start: int, stop: int) -> list[bytes]:
        found = self.names[max(start, 0) : stop]
        self.read += len(found)
        return found

    def _find_known(self, dataset: DatasetId) -> Frontier:
        return Frontier().extend(self.names)

    def _tree(self, dataset: DatasetId) -> Tree:
        return Tree(partial(self._leaves, dataset))

    def root(self, size: int) -> bytes:
        return Frontier().extend(self.names[:size]).root


steps = st.lists(st.tuples(st.sampled_from(["grow", "prove", "rewrite"]), st.integers(1, 3000)), max_size=12)


@pytest.mark.slow
@settings(max_examples=25)
@given(steps)
def test_right_at_every_size(steps: list[tuple[str, int]]) -> None:
    prover = Hashes()
    for number, (step, count) in enumerate(steps):
        if step == "grow":
            prover.names += [leaf(f"{number} {at}") for at in range(count)]
        elif step == "rewrite":
            del prover.names[count:]
            prover.names += [leaf(f"again {number}")]
        elif prover.names:
            size = len(prover.names)
            old = 1 + count % size
            nodes = prover.prove(DATASET, size, old=old)
            assert is_consistent(old, prover.root(old), size, prover.root(size), nodes)
            path = prover.prove(DATASET, size, index=old - 1)
            assert root_from_inclusion(prover.names[old - 1], old - 1, size, path) == prover.root(size)


@pytest.mark.slow
def test_a_second_proof_reads_little() -> None:
    prover = Hashes()
    prover.names = [leaf(str(at)) for at in range(40_000)]
    prover.prove(DATASET, 40_000, old=20_000)
    before = prover.read
    for old in (1, 777, 32_768, 39_999):
        prover.prove(DATASET, 40_000, old=old)
    assert before >= 40_000
    assert prover.read - before < 4 * 3 * 1024


class Table:
    """Hashes of a chain in a real database, and what was checked of it."""

    def __init__(self, path: Path, count: int) -> None:
        self.database = Database(path)
        self.close = self.database.close
        self.database.migrate(schema.ROOM, schema.STEPS)
        self.database.migrate(ROOM, STEPS)
        self.names = [leaf(str(at)) for at in range(count)]
        rows = [(at, b"\x16\x20" + name) for at, name in enumerate(self.names)]
        with self.database.write() as connection:
            connection.execute(
                "INSERT INTO datasets (number, id, head_sequence, head_hash) VALUES (1, ?, ?, ?)",
                (bytes(DATASET), count - 1, rows[-1][1]),
            )
            connection.executemany("INSERT INTO blocks VALUES (1, ?, 1, ?, x'')", rows)
            Ledger(connection).keep_chain(DATASET, CheckedChain(Frontier().extend(self.names)))

    def prove(self, old: int) -> int:
        """How many hashes a proof by a new process reads."""
        prover, size = Counting(self.database), len(self.names)
        nodes = prover.prove(DATASET, size, old=old)
        assert is_consistent(
            old, Frontier().extend(self.names[:old]).root, size, Frontier().extend(self.names).root, nodes
        )
        return prover.read


class Counting(TreeProofs):
    read = 0

    def _digests(self, dataset: DatasetId, start: int, stop: int) -> list[bytes]:
        found = super()._digests(dataset, start, stop)
        self.read += len(found)
        return found


@pytest.mark.slow
def test_what_was_read_once_is_kept_for_the_next_start(tmp_path: Path) -> None:
    with closing(Table(tmp_path / "db", 20_000)) as table:
        assert table.prove(7_777) >= 20_000
        assert table.prove(7_777) < 4 * GROUP
        assert table.prove(19_999) < 4 * GROUP


@pytest.mark.slow
@pytest.mark.parametrize("spoil", ["UPDATE trust_subtrees SET root = zeroblob(32) WHERE place = 3",
                                   "DELETE FROM trust_subtrees WHERE place = 3",
                                   "UPDATE trust_subtrees SET root = zeroblob(3) WHERE place = 3"])  # fmt: skip
def test_what_is_kept_is_not_believed(tmp_path: Path, spoil: str) -> None:
    with closing(Table(tmp_path / "db", 20_000)) as table:
        table.prove(7_777)
        with table.database.write() as connection:
            connection.execute(spoil)
        assert table.prove(7_777) >= 20_000
        assert table.prove(7_777) < 4 * GROUP, "it was made anew"


# What a disk has changed is not sent on: each byte is hashed on its way, of small objects and of large ones.


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

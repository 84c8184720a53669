"""Proofs from a database: right at every size while the chain grows, and right again after it was rewritten."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from chain.ids import DatasetId
from chain.statements.tree import Frontier, is_consistent, root_from_inclusion
from odfd.network.proving import Prover

DATASET = DatasetId.from_public_key(b"p" * 32)


def leaf(text: str) -> bytes:
    return hashlib.sha3_256(text.encode()).digest()


class Hashes(Prover):
    """A prover over a list in place of a table."""

    def __init__(self) -> None:
        super().__init__(None)  # type: ignore[arg-type]
        self.names: list[bytes] = []
        self.read = 0

    def _digests(self, dataset: DatasetId, start: int, stop: int) -> list[bytes]:
        found = self.names[max(start, 0) : stop]
        self.read += len(found)
        return found

    def _known(self, dataset: DatasetId) -> Frontier:
        return Frontier().extend(self.names)

    def root(self, size: int) -> bytes:
        return Frontier().extend(self.names[:size]).root


steps = st.lists(st.tuples(st.sampled_from(["grow", "prove", "rewrite"]), st.integers(1, 3000)), max_size=12)


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


def test_a_second_proof_reads_little() -> None:
    prover = Hashes()
    prover.names = [leaf(str(at)) for at in range(40_000)]
    prover.prove(DATASET, 40_000, old=20_000)
    before = prover.read
    for old in (1, 777, 32_768, 39_999):
        prover.prove(DATASET, 40_000, old=old)
    assert before >= 40_000
    assert prover.read - before < 4 * 3 * 1024


def test_from_a_real_table(tmp_path: Path) -> None:
    import sqlite3

    class Table:
        def __init__(self) -> None:
            self.connection = sqlite3.connect(":memory:")
            self.connection.executescript(
                "CREATE TABLE datasets (number INTEGER PRIMARY KEY, id BLOB);"
                "CREATE TABLE blocks (dataset INTEGER, sequence INTEGER, hash BLOB);"
                "CREATE TABLE trust_chains (dataset BLOB, frontier BLOB, data INTEGER, epoch INTEGER, seal BLOB);"
            )

        def read(self) -> Any:
            return self.connection

    table = Table()
    names = [leaf(str(at)) for at in range(100)]
    table.connection.execute("INSERT INTO datasets VALUES (1, ?)", (bytes(DATASET),))
    rows = [(1, at, b"\x16\x20" + name) for at, name in enumerate(names)]
    table.connection.executemany("INSERT INTO blocks VALUES (?, ?, ?)", reversed(rows))
    prover = Prover(table)  # type: ignore[arg-type]
    nodes = prover.prove(DATASET, 100, old=37)
    assert is_consistent(37, Frontier().extend(names[:37]).root, 100, Frontier().extend(names).root, nodes)

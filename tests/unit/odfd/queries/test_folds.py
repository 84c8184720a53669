"""Folds on disk: found for their history alone, bounded, and taken from nobody but a file."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest

from chain.errors import Environment, Fault, Refused
from chain.ids import DatasetId
from chain.multihash import Multihash
from engines.query.views import SliceView
from odfd.queries.folds import FoldStore

DATASET = DatasetId(bytes.fromhex("ed01") + bytes(32))
BLOCK = Multihash.parse("f1620" + "ab" * 32)
SCHEMA = pa.schema({"x": pa.int64()}).serialize().to_pybytes()
VIEW = SliceView(name="v", files=(), schema=SCHEMA, fold="key", key=("x",))


def store(tmp_path: Path, most: int = 100) -> FoldStore:
    return FoldStore(tmp_path / "folds", most)


def made(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "made"
    path.write_bytes(data)
    return path


def test_a_fold_is_found_for_its_cut_its_history_and_its_way(tmp_path: Path) -> None:
    folds = store(tmp_path)
    folds.keep(DATASET, made(tmp_path, b"old"), VIEW, (3, BLOCK), 1)
    folds.keep(DATASET, made(tmp_path, b"new"), VIEW, (11, BLOCK), 2)
    asked: list[tuple[int, str]] = []
    found = folds.find(DATASET, VIEW, 20, lambda *each: not asked.append(each))
    assert found is not None
    assert (found.path.read_bytes(), found.file.rows, asked) == (b"new", 2, [(10, str(BLOCK))])
    earlier = folds.find(DATASET, VIEW, 10, lambda *_: True)
    assert earlier is not None
    assert earlier.path.read_bytes() == b"old"
    assert folds.find(DATASET, VIEW, 2, lambda *_: True) is None
    assert folds.find(DATASET, VIEW, 20, lambda *_: False) is None
    other = SliceView(name="v", files=(), schema=VIEW.schema, fold="rows")
    assert folds.find(DATASET, other, 20, lambda *_: True) is None


def test_the_least_used_make_room(tmp_path: Path) -> None:
    folds = store(tmp_path)
    for size in (1, 2):
        folds.keep(DATASET, made(tmp_path, bytes(40)), VIEW, (size, BLOCK), 1)
        (newest,) = (tmp_path / "folds").glob(f"*/{size}.*")
        os.utime(newest, ns=(size, size))
    assert folds.find(DATASET, VIEW, 1, lambda *_: True) is not None, "used now"
    folds.keep(DATASET, made(tmp_path, bytes(40)), VIEW, (3, BLOCK), 1)
    assert sorted(path.name[0] for path in (tmp_path / "folds").glob("*/*")) == ["1", "3"]
    with pytest.raises(Refused):
        folds.keep(DATASET, made(tmp_path, bytes(101)), VIEW, (4, BLOCK), 1)
    assert len(list((tmp_path / "folds").glob("*/*"))) == 2, "nothing half-written"


def test_a_fold_is_a_file_and_no_link(tmp_path: Path) -> None:
    """What a query's process leaves may be anything."""
    secret = made(tmp_path, b"secret")
    link, pipe = tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(secret)
    os.mkfifo(pipe)
    for bad in (link, pipe, tmp_path / "nothing"):
        with pytest.raises(Fault) as refusal:
            store(tmp_path).keep(DATASET, bad, VIEW, (1, BLOCK), 1)
        assert isinstance(refusal.value, Environment) or refusal.value.rule == "query-fold"
    assert not list((tmp_path / "folds").glob("*/*"))

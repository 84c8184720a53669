"""The folder layout waits for its own file system, and tells what that could not write."""

from __future__ import annotations

import ctypes
import errno
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from chain.errors import Environment, NotFound
from chain.multihash import Multihash
from chain.store import durable
from chain.store.layout import DirectoryWriter, read_head

NAME = Multihash.sha3_256(b"a block")


def failing(_: int) -> int:
    ctypes.set_errno(errno.EIO)
    return -1


def test_a_folder_that_is_gone_is_told(tmp_path: Path) -> None:
    chain = DirectoryWriter(tmp_path / "one")
    shutil.rmtree(tmp_path / "one")
    with pytest.raises(NotFound, match="no file"):
        chain.set_head(NAME, None)


def test_a_disk_that_fails_moves_no_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``os.sync`` returns nothing: a head could name a block that no disk holds."""
    chain = DirectoryWriter(tmp_path)
    chain.add_block(NAME, b"a block")
    monkeypatch.setattr(durable, "_c_library", lambda: SimpleNamespace(syncfs=failing))
    with pytest.raises(Environment, match=r"cannot use .*: Input/output error"):
        chain.set_head(NAME, None)
    assert read_head(tmp_path) is None

"""A file that grows: what was appended is what is there, whatever the pieces, the file system and the disk do."""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from chain.errors import Environment
from odfd.mirrors import sinks
from odfd.mirrors.sinks import Spool

PAGE = os.sysconf("SC_PAGESIZE")
CACHED, STAGED = 2 * PAGE, 4 * PAGE
MOST = 20 * PAGE
WHOLE = os.urandom(MOST)
PIECES = st.lists(st.one_of(st.integers(0, 3 * PAGE), st.integers(0, 6).map(lambda pages: pages * PAGE)), max_size=12)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks, "CACHED", CACHED)
    monkeypatch.setattr(sinks, "STAGED", STAGED)
    monkeypatch.setattr(sinks, "_SPARE", deque(maxlen=1))


def fill(file: Spool, pieces: Sequence[int]) -> None:
    for size in pieces:
        file.append(memoryview(WHOLE)[file.size : file.size + size])


@pytest.fixture(params=["beside the cache", "not told so", "refused later", "in parts"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """File systems: that know O_DIRECT, that do not, that open it and take nothing so, and that take a part."""
    opened, put = os.open, os.pwrite

    def no_direct(path: Any, flags: int, *mode: int, **more: Any) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no such thing here")
        return opened(path, flags, *mode, **more)

    def takes_nothing(file: int, data: Any, offset: int) -> int:
        if fcntl.fcntl(file, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EINVAL, "not aligned")
        return put(file, data, offset)

    def takes_part(file: int, data: Any, offset: int) -> int:
        return put(file, data[: max(PAGE, len(data) // 2)], offset)

    if request.param == "not told so":
        monkeypatch.setattr(os, "open", no_direct)
    elif request.param != "beside the cache":
        monkeypatch.setattr(os, "pwrite", takes_nothing if request.param == "refused later" else takes_part)


@pytest.mark.slow
@pytest.mark.usefixtures("way")
@given(sittings=st.lists(PIECES, min_size=1, max_size=4))
@example(sittings=[[CACHED + STAGED], [1], [STAGED]])
def test_what_was_appended_is_there_however_it_came(sittings: list[list[int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "it")
        for pieces in sittings:
            file = Spool(path)
            begun = b"".join(file.parts())
            assert WHOLE.startswith(begun)
            assert file.size == len(begun)
            fill(file, pieces)
            size = file.size
            file.close()
            assert path.read_bytes() == WHOLE[:size]


@pytest.mark.slow
@given(pieces=PIECES, room=st.integers(0, MOST), times=st.integers(1, 3), more=PIECES)
@example(pieces=[MOST], room=CACHED + STAGED, times=3, more=[MOST])
@example(pieces=[CACHED + STAGED, 1], room=CACHED, times=1, more=[MOST])
def test_after_a_full_disk_it_goes_on_from_what_is_there(
    pieces: list[int], room: int, times: int, more: list[int]
) -> None:
    """Attack T-DISK-02: a disk that is full for a while when a large object arrives, and a hole in the stored part.

    Defence: a failed write discards all later ones; the stored part is contiguous, and the transfer resumes from it.
    """
    put, refused = os.pwrite, 0

    def scarce(file: int, data: Any, offset: int) -> int:
        nonlocal refused
        if refused == times or offset + len(data) <= room:
            return put(file, data, offset)
        if offset < room:
            return put(file, data[: room - offset], offset)
        refused += 1
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        path = Path(folder, "it")
        patch.setattr(os, "pwrite", scarce)
        file = Spool(path)
        is_full = fails(lambda: fill(file, pieces))
        is_full |= fails(file.close)
        there = path.read_bytes()
        assert there == WHOLE[: len(there)], "a hole would be taken for what came"
        wanted = min(sum(pieces), MOST)
        assert is_full == (wanted > room)
        assert len(there) >= min(wanted, room) - STAGED, "what was there before is lost"
        patch.undo()
        again = Spool(path)
        assert len(there) - PAGE < again.size <= len(there)
        assert again.size <= CACHED or not again.size % PAGE
        fill(again, more)
        size = again.size
        again.close()
        assert path.read_bytes() == WHOLE[:size]


def fails(work: Callable[[], object]) -> bool:
    try:
        work()
    except Environment:
        return True
    return False


def test_a_disk_that_takes_its_time_holds_up_nothing_until_both_buffers_are_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, is_free, taken = os.pwrite, threading.Event(), []

    def slow(file: int, data: Any, offset: int) -> int:
        if offset >= CACHED:
            is_free.wait()
            taken.append(offset)
        return put(file, data, offset)

    file = Spool(tmp_path / "it")
    monkeypatch.setattr(os, "pwrite", slow)
    fill(file, [PAGE] * ((CACHED + STAGED + STAGED) // PAGE - 1))
    assert (taken, file.size) == ([], CACHED + 2 * STAGED - PAGE)
    is_free.set()
    fill(file, [PAGE, 1])
    file.close()
    assert taken == [CACHED, CACHED + STAGED, CACHED + 2 * STAGED]


def test_what_is_forgotten_leaves_nothing(tmp_path: Path) -> None:
    file = Spool(tmp_path / "it")
    fill(file, [MOST - 1])
    file.clear()
    assert (file.size, (tmp_path / "it").stat().st_size) == (0, 0)
    fill(file, [MOST - 5])
    file.close()
    file.close()
    assert (tmp_path / "it").read_bytes() == WHOLE[: MOST - 5]


def test_what_is_large_does_not_stay_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []
    before = os.open

    def seen(path: Any, flags: int, *mode: int) -> int:
        opened.append(flags & os.O_DIRECT)
        return before(path, flags, *mode)

    monkeypatch.setattr(os, "open", seen)
    file = Spool(tmp_path / "it")
    fill(file, [CACHED])
    assert opened == [0], "a small file is any file"
    fill(file, [STAGED])
    assert opened == [0, os.O_DIRECT]
    file.close()

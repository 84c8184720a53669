"""Preparation: bytes out are the bytes meant, bombs and torn files are refused, commands only where allowed."""

from __future__ import annotations

import gzip
import os
import select
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest
import trio

from chain.errors import Environment, Invalid, NotFound, Refused
from chain.model.source import CompressionFormat, Decompress, Pipe
from odfd.ingest import preparation
from odfd.ingest.settings import IngestSettings
from worlds.eventually import PATIENCE
from worlds.sources import prepare, prepared

GZIP = Decompress(format=CompressionFormat.GZIP)
ZIP = Decompress(format=CompressionFormat.ZIP)


def settings(folder: Path, **more: Any) -> IngestSettings:
    return IngestSettings(staging=folder, **more)


def test_gzip_and_zip(tmp_path: Path) -> None:
    packed = tmp_path / "a.gz"
    packed.write_bytes(gzip.compress(b"one") + gzip.compress(b"two"))
    assert prepare(packed, [GZIP], tmp_path, settings(tmp_path)).read_bytes() == b"onetwo"
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("d/", "")
        archive.writestr("d/first.csv", "1")
        archive.writestr("second.csv", gzip.compress(b"2"))
    path = tmp_path / "a.zip"
    assert prepare(path, [ZIP], tmp_path, settings(tmp_path)).read_bytes() == b"1"
    second = Decompress(format=CompressionFormat.ZIP, sub_path="second.csv")
    assert prepare(path, [second, GZIP], tmp_path, settings(tmp_path)).read_bytes() == b"2"
    with pytest.raises(NotFound, match=r"no third\.csv in a\.zip") as caught:
        prepare(path, [Decompress(format=CompressionFormat.ZIP, sub_path="third.csv")], tmp_path, settings(tmp_path))
    assert "d/first.csv" in caught.value.hint
    assert prepare(path, [], tmp_path, settings(tmp_path)) == path


def test_which_file_of_a_zip_was_read_is_said(tmp_path: Path) -> None:
    path = tmp_path / "download"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("b.csv", "a.csv", "LICENSE"):
            archive.writestr(name, name)
    first = prepared(path, [ZIP], tmp_path, settings(tmp_path), name="data.zip")
    assert first.path.read_text() == "b.csv"
    assert first.remarks == ("data.zip holds 3 files: b.csv was read, and not a.csv, LICENSE (subPath chooses)",)
    chosen = Decompress(format=CompressionFormat.ZIP, sub_path="a.csv")
    assert prepared(path, [chosen], tmp_path, settings(tmp_path)).remarks == ()


def test_what_a_server_packed_for_the_way_needs_no_step(tmp_path: Path) -> None:
    """Web servers send ``data.csv.gz`` as a CSV with gzip around it; manifests unpack it."""
    path = tmp_path / "download"
    path.write_bytes(b"a,b\n")
    done = prepared(path, [GZIP], tmp_path, settings(tmp_path), name="data.csv.gz", decoded=True)
    assert (done.path, len(done.remarks)) == (path, 1)
    with pytest.raises(Invalid, match=r"data\.csv\.gz is not whole gzip") as told:
        prepare(path, [GZIP], tmp_path, settings(tmp_path), name="data.csv.gz")
    assert "leave out the step" in told.value.hint
    path.write_bytes(gzip.compress(b"a,b\n"))
    twice = prepared(path, [GZIP], tmp_path, settings(tmp_path), decoded=True)
    assert (twice.path.read_bytes(), twice.remarks) == (b"a,b\n", ())


@pytest.mark.parametrize("cut", [0, 1, 5, 12, 20])
def test_torn_files(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "torn"
    path.write_bytes(gzip.compress(b"some text")[:cut] if cut else b"plain")
    with pytest.raises(Invalid, match="torn is not whole gzip"):
        prepare(path, [GZIP], tmp_path, settings(tmp_path))
    with pytest.raises(Invalid, match="torn is not a zip file"):
        prepare(path, [ZIP], tmp_path, settings(tmp_path))


def test_bombs_stop_at_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(bytes(10 << 20)))
    with pytest.raises(Refused, match="larger than 1048576 bytes"):
        prepare(path, [GZIP], tmp_path, settings(tmp_path, max_source_bytes=1 << 20))
    assert (tmp_path / "prepared-0").stat().st_size <= 1 << 20


def test_a_check_stops_the_work(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(b"x"))

    def stop() -> None:
        raise Environment("enough")

    with pytest.raises(Environment, match="enough"):
        preparation.inflate(preparation.PackedFile(path, "a.gz", settings(tmp_path), stop), GZIP, tmp_path / "out")


def test_a_check_stops_what_gives_nothing(tmp_path: Path) -> None:
    """A gzip of nothing but empty members: its reader went through all of them before anybody was asked."""
    packed = tmp_path / "empty.gz"
    packed.write_bytes(gzip.compress(b"") * 10_000)
    checks = iter(range(100))
    with pytest.raises(StopIteration):
        preparation.inflate(
            preparation.PackedFile(packed, "x", settings(tmp_path), lambda: next(checks) and None),
            GZIP,
            tmp_path / "out",
        )


def test_a_zip_of_members_beyond_measure_is_refused_unread(tmp_path: Path) -> None:
    """The list of them is read whole, in the daemon; here 9 MiB of it, for a file that holds nothing."""
    entry = struct.pack("<4s4B4HL2L5H2L", b"PK\1\2", 20, 3, 20, *(0,) * 8, 1, *(0,) * 6) + b"a"
    count = (9 << 20) // len(entry)
    size = count * len(entry)
    end = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, size, 0)
    end += struct.pack("<4sLQL", b"PK\6\7", 0, size, 1)
    end += struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    packed = tmp_path / "many"
    packed.write_bytes(entry * count + end)
    with pytest.raises(Invalid, match="the list of files in many has more than") as told:
        prepare(packed, [ZIP], tmp_path, settings(tmp_path))
    assert told.value.rule == "prepare-zip"


def test_pipes_run_only_where_allowed(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("b\na\n")
    with pytest.raises(Refused, match="would run 'sort'"):
        prepare(path, [Pipe(command=("sort",))], tmp_path, settings(tmp_path, pipe="never"))
    allowed = settings(tmp_path, pipe="user")
    assert prepare(path, [Pipe(command=("sort",))], tmp_path, allowed).read_text() == "a\nb\n"
    with pytest.raises(Invalid, match="sh ended with 3: oh"):
        prepare(path, [Pipe(command=("sh", "-c", "echo oh >&2; exit 3"))], tmp_path, allowed)
    with pytest.raises(Environment, match="cannot run no-such-program"):
        prepare(path, [Pipe(command=("no-such-program",))], tmp_path, allowed)


@pytest.mark.parametrize("step", [GZIP, Pipe(command=("cat",))], ids=["unpacked", "piped"])
def test_the_disk_keeps_its_reserve(tmp_path: Path, step: Any) -> None:
    """An unpacked file filled the disk to its last byte."""
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(b"x"))
    with pytest.raises(Environment) as caught:
        prepare(path, [step], tmp_path, settings(tmp_path, disk_reserve=1 << 60, pipe="user"))
    assert caught.value.rule == "disk-reserve"
    assert not (tmp_path / "prepared-0").stat().st_size


@pytest.mark.slow
def test_what_a_command_gives_is_bounded(tmp_path: Path) -> None:
    """In bytes and in time; whatever it started ends with it, and its complaints are cut."""
    path = tmp_path / "a"
    path.write_text("")
    allowed = settings(tmp_path, pipe="user", max_source_bytes=1 << 20)
    with pytest.raises(Refused, match="what yes gave is larger than 1048576 bytes"):
        prepare(path, [Pipe(command=("yes",))], tmp_path, allowed)
    child = tmp_path / "child"
    sleeping = Pipe(command=("sh", "-c", f"sleep 1000 & echo $! > {child}; wait"))
    with pytest.raises(Refused, match=r"sh ran over 3 s") as caught:
        prepare(path, [sleeping], tmp_path, settings(tmp_path, pipe="user", pipe_timeout=3))
    assert "ingest.pipe-seconds" in caught.value.hint
    assert ends(int(child.read_text()))
    with pytest.raises(Invalid) as failed:
        prepare(path, [Pipe(command=("sh", "-c", "head -c 1000000 /dev/zero >&2; exit 1"))], tmp_path, allowed)
    assert len(failed.value.message) < 1000


async def test_a_command_ends_when_nobody_waits(tmp_path: Path) -> None:
    """It held a worker thread, and with it the end of the daemon."""
    path, child = tmp_path / "a", tmp_path / "child"
    path.write_text("")
    os.mkfifo(child)
    step = Pipe(command=("sh", "-c", f"echo $$ > {child}; exec sleep 1000"))
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(preparation.prepare, path, [step], tmp_path, settings(tmp_path, pipe="user"))
            process = int(await trio.to_thread.run_sync(child.read_text))
            nursery.cancel_scope.cancel()
    assert ends(process)


def ends(process: int) -> bool:
    """Whether it has ended, or does within a while: it was killed, and the system gets round to it."""
    try:
        watched = os.pidfd_open(process)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([watched], [], [], PATIENCE)[0])
    finally:
        os.close(watched)

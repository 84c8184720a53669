"""A slice that is small on disk and vast in memory is compared in a process of its own, under its limits."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odfd.trust.evidence import comparison_process
from odfd.trust.evidence.comparison_process import MEMORY, OUT_OF_MEMORY, compare_in_process, why_ended
from odfd.trust.evidence.row_diff import compare

ROWS = 4096


def bomb(path: Path, last: str) -> Path:
    """Half a MiB that says one long text four thousand times: 2 GiB as values."""
    rng = np.random.default_rng(7)
    text = "".join(chr(97 + each) for each in rng.integers(0, 26, 1 << 19))
    values = pa.DictionaryArray.from_arrays(pa.array([0] * (ROWS - 1) + [1], pa.int32()), pa.array([text, last]))
    table = pa.table(
        {"offset": pa.array(range(ROWS), pa.int64()), "text": values.cast(pa.dictionary(pa.int32(), pa.string()))}
    )
    pq.write_table(table, path, compression="zstd", store_schema=False, dictionary_pagesize_limit=16 << 20)
    return path


MEASURED = """
import resource, sys, trio
from pathlib import Path
from odfd.trust.evidence.comparison_process import compare_in_process
peak = lambda of: resource.getrusage(of).ru_maxrss
before = peak(resource.RUSAGE_SELF)
found = trio.run(compare_in_process, *map(Path, sys.argv[1:]))
print(peak(resource.RUSAGE_SELF) - before, peak(resource.RUSAGE_CHILDREN), found.message)
"""
"""In a process of its own: the peaks of one that ran other tests are theirs."""


GREEDY = """
import sys
from odfd.trust.evidence import comparison_process as it
it.compare_here = lambda *_: bytearray(it.MEMORY) and it.RowDifference()
sys.exit(it.main("", ""))
"""
"""Asks for as much address space as there is, and touches none of it."""


@pytest.fixture(scope="module")
def ended() -> int:
    return subprocess.run([sys.executable, "-c", GREEDY], capture_output=True, check=False).returncode


@pytest.mark.slow
def test_it_gets_so_much_memory_and_no_more(ended: int) -> None:
    assert ended == OUT_OF_MEMORY


@pytest.mark.slow
def test_a_slice_that_would_take_all_memory_is_compared_apart(tmp_path: Path, ended: int) -> None:
    """446 KiB of Parquet took 2.5 GB in the daemon."""
    assert ended == OUT_OF_MEMORY, "it would take minutes without a limit"
    one, other = bomb(tmp_path / "published", "this"), bomb(tmp_path / "computed", "that")
    assert one.stat().st_size < 1 << 20
    command = [sys.executable, "-c", MEASURED, str(one), str(other)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    here, there, message = said.split(maxsplit=2)
    assert int(here) < 64 << 10, "KiB"
    assert int(there) < MEMORY >> 10
    assert "differ" in message


@pytest.mark.parametrize(
    ("code", "said", "told"),
    [
        (OUT_OF_MEMORY, b"", "1,024 MiB of memory"),
        (-signal.SIGABRT, b"terminate called after throwing an instance of 'std::bad_alloc'", "1,024 MiB of memory"),
        (-signal.SIGXCPU, b"", "60 s of processor time"),
        (-signal.SIGKILL, b"", "ended by signal 9"),
        (1, b"Traceback", "failed with exit code 1"),
    ],
)
def test_how_it_ended_is_told_apart(code: int, said: bytes, told: str) -> None:
    assert told in why_ended(subprocess.CompletedProcess([], code, b"", said))


async def test_memory_is_not_blamed_for_what_fails_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "msgspec.py").write_text("raise RuntimeError")
    monkeypatch.setattr(comparison_process, "_path", lambda: str(tmp_path))
    found = await compare_in_process(tmp_path, tmp_path)
    assert found.message == "the slices differ; the process that compared them failed with exit code 1"


@pytest.mark.slow
async def test_rows_are_told_from_there(tmp_path: Path) -> None:
    for name, value in (("published", "1"), ("computed", "2")):
        pq.write_table(pa.table({"offset": [0, 1], "x": ["0", value]}), tmp_path / name)
    found = await compare_in_process(tmp_path / "published", tmp_path / "computed")
    assert found == compare(tmp_path / "published", tmp_path / "computed")
    assert [(cell.row, cell.column, cell.published, cell.computed) for cell in found.cells] == [(1, "x", "1", "2")]


@pytest.mark.slow
@pytest.mark.parametrize("made", [b"", b"PAR1 nothing of the kind PAR1", b"x" * 4096])
async def test_what_is_no_slice_is_told_as_such(tmp_path: Path, made: bytes) -> None:
    pq.write_table(pa.table({"x": [1]}), tmp_path / "computed")
    (tmp_path / "published").write_bytes(made)
    found = await compare_in_process(tmp_path / "published", tmp_path / "computed")
    assert found.message
    assert not found.cells


@given(
    st.lists(st.integers(0, 3), max_size=40),
    st.lists(st.integers(0, 3), max_size=40),
    st.integers(1, 7),
    st.integers(1, 7),
)
def test_what_differs_does_not_depend_on_how_files_are_cut(
    tmp_path_factory: pytest.TempPathFactory, left: list[int], right: list[int], one: int, other: int
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    for name, values, size in (("a", left, one), ("b", right, other)):
        pq.write_table(pa.table({"x": pa.array(values, pa.int64())}), folder / name, row_group_size=size)
    found = compare(folder / "a", folder / "b")
    differing = [row for row, (ours, theirs) in enumerate(zip(left, right, strict=False)) if ours != theirs]
    assert [cell.row for cell in found.cells] == differing[:20]
    assert (found.published_rows, found.computed_rows) == (len(left), len(right))

"""That every row can be measured, at sizes that say nothing about speed; and that long chains are real ones."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from bench import chains, machine, report
from bench.__main__ import ROWS, measurement
from bench.buckets import PROGRAM
from bench.measure import Row, Side, Size
from chain.codec.blocks import decode_block
from chain.rules.check import check_block
from chain.state import ChainState

TREE = Path(__file__).parents[3]
DAEMONS = {
    "cli",
    "client",
    "reading",
    "datasets",
    "pull",
    "pushes",
    "bucket",
    "live",
    "second",
    "memory",
    "object",
    "sync",
    "rtt",
    "mirror",
    "gossip",
    "crowd",
}
ENGINES = {
    "again",
    "snapshot",
    "transform",
    "ingest",
    "idle",
    "streaming",
    "history",
    "large",
    "table",
    "nexmark",
    "cluster",
    "exact",
}


def marked(name: str) -> object:
    return pytest.param(name, marks=[pytest.mark.e2e] * (name in DAEMONS))


@pytest.mark.slow
@pytest.mark.parametrize("name", [marked(name) for name in ROWS if name not in ENGINES])
def test_every_row_can_be_measured(name: str, tmp_path: Path) -> None:
    if name == "bucket" and not PROGRAM.is_file():
        pytest.skip("no s5cmd is here: make s5cmd")
    rows = measurement(name)(Size(quick=True), tmp_path)
    assert rows
    for row in rows:
        assert all(0 < ratio < math.inf for ratio in row.ratios), row
    assert all(row.name in report.lines(rows) for row in rows)
    assert "cores" in report.heading(machine.facts())
    report.write_json(rows, machine.facts(), tmp_path / "out.json")
    written = json.loads((tmp_path / "out.json").read_bytes())["rows"]
    assert [row["ratio"]["max"] for row in written] == [max(row.ratios) for row in rows]


@pytest.mark.slow
@pytest.mark.engine
def test_every_row_with_spark_can_be_measured(tmp_path: Path) -> None:
    """In a process of its own: Spark's driver is one a process, and the other tests have theirs. One for all rows:
    imports, and the Spark that is no engine, are started once."""
    out = tmp_path / "out.json"
    names = [name for name in ROWS if name in ENGINES]
    command = [sys.executable, "-m", "bench", *names, "--quick", "--out", str(out)]
    done = subprocess.run(command, cwd=TREE, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(out.read_bytes())["rows"]
    assert {row["name"].split()[0].rstrip(",") for row in rows} == set(names)
    assert all(0 < row["ratio"]["min"] <= row["ratio"]["max"] < math.inf for row in rows)


def test_ratios_are_of_neighbours() -> None:
    row = Row(
        name="x",
        measures="one thing",
        ours=Side(name="ours", costs=(2.0, 3.0, 8.0), amount=24.0, unit="B"),
        peer=Side(name="peer", costs=(1.0, 3.0, 2.0)),
    )
    assert row.ratios == (2.0, 1.0, 4.0)
    assert row.ours.figures() == (8.0, 3.0, 12.0)
    assert row.peer.figures() == (2.0, 1.0, 3.0)
    assert "2.00  1.00..4.00" in report.lines([row])


@pytest.mark.slow
@pytest.mark.parametrize("slices", [True, False])
def test_long_chains_hold(slices: bool) -> None:
    """Over the end of a page; with the rules for authors, which ask for more than verification does."""
    state = ChainState.EMPTY
    raws = list(chains.long_chain(chains.PAGE + 300, slices=slices))
    for raw in raws:
        block = decode_block(raw)
        assert not check_block(state, block, as_author=True)
        state = state.advance(block)
    assert state.size == len(raws)
    assert state.last_offset == ((len(raws) - 2) * chains.ROWS - 1 if slices else None)
    assert state.watermark == state.system_time


def test_a_peak_sees_what_was_held_for_a_moment() -> None:
    with machine.Peak() as peak:
        held = bytearray(b"x" * (64 << 20))
        del held
    assert peak.bytes > 32 << 20

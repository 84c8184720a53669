"""A lie derived on real Spark, bundled, and found again by a command that has nothing but the file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from engines.provision.host import SparkOptions, spark_engine
from engines.provision.settings import WarmthLimits
from odfd.trust.evidence.bundle import unpacked
from odfd.trust.validation.recheck import recheck
from worlds import accused_world
from worlds.eventually import ENGINE_START

pytestmark = [pytest.mark.engine, pytest.mark.slow]

DAY = 86_400
DAILY = """
select window.start as event_time, count(*) as n, sum(k) as total from x group by window(event_time, '1 day')
"""


@pytest.mark.nightly  # starts two engines
async def test_a_lie_with_state_is_confirmed_by_the_command_line(tmp_path: Path) -> None:
    """Windows stay open over steps, so the lying step starts from a checkpoint; the bundle brings it along."""
    options = SparkOptions(
        scratch=tmp_path / "scratch",
        cache=tmp_path / "cache",
        cores=2,
        heap="1g",
        quick=True,
        limits=WarmthLimits(start=ENGINE_START),
    )
    host = await spark_engine(options, os.environ, lambda *_: None)
    async with trio.open_nursery() as nursery:
        await nursery.start(host.engine.run)
        accused = accused_world.Accused(tmp_path / "world", accused_world.LyingEngine(host.engine, column="total"))
        accused.found(DAILY, host.identity.digest)
        accused.world.add_rows([10, 20, DAY + 5], watermark=1000)
        await accused.derive(lies=False)
        accused.world.add_rows([30, DAY + 6], watermark=DAY * 1000)
        await accused.derive(lies=True)
        made = await accused.gathered()
        step = accused.chain.block_at(accused.chain.head().sequence_number).event
        assert step.prev_checkpoint in made.sources
        file = tmp_path / "lie.odfe"
        file.write_bytes(accused_world.packed(made))
        (tmp_path / "again" / "staging").mkdir(parents=True)
        with file.open("rb") as opened, unpacked(opened, "lie.odfe", tmp_path / "again") as case:
            found = await recheck(case, host.engine, tmp_path / "again" / "staging")
        nursery.cancel_scope.cancel()
    assert (found.result, found.state) == ("confirmed", "compared")
    command = [sys.executable, "-m", "odfd.cli.main", "trust", "recheck", str(file), "-o", "json"]
    done = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    answer = json.loads(done.stdout)
    assert (answer["result"], answer["state"], answer["engine"]) == ("confirmed", "compared", host.identity.digest)
    (cell,) = answer["cells"]
    assert (cell["row"], cell["column"], int(cell["published"]) - int(cell["computed"])) == (0, "total", 1)


def test_another_engine_cannot_tell() -> None:
    """The pinned bundle was made by an engine that this machine does not have: no verdict, and no engine is started."""
    golden = Path(__file__).parents[2] / "golden" / "trust" / "lie.odfe"
    command = [sys.executable, "-m", "odfd.cli.main", "trust", "recheck", str(golden), "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 7, done.stderr
    assert "pins the engine" in json.loads(done.stdout)["reason"]

"""``kill -9`` at durable steps while a node takes from a source of each kind: no row is lost, and none comes twice.

A life ends at a step that is drawn: of commits, before one, within it, behind it, between two; of pushes to an endpoint
also before, within and behind what makes them durable. ``ODF_SOAK=20`` has fifty lives of each kind, others four. Each
run has one source of each way to know where it stopped; the others of its kind are nightly, as are the blocks of EVM,
whose number is a cursor like that of a database.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq
import pytest

from worlds.databases import PASSWORD
from worlds.eventually import PATIENCE
from worlds.growing_sources import BATCH, KINDS, Growing

pytestmark = pytest.mark.e2e
LIVES: Final = max(4, 5 * int(os.environ.get("ODF_SOAK", "1")) // 2)
EACH_LIFE: Final = 3 * BATCH
EACH_RUN: Final = {"files", "database", "pushes", "ingests"}
LAST_STEP: Final = 22
"""A commit has about a dozen steps."""
LAST_PUSH_STEP: Final = 40
"""A push that is alone has three or four steps."""


def life(daemon: Any, source: Growing, rng: random.Random) -> bool:
    """Starts, takes what is new, and ends by itself at a step; whether it did, or took all."""
    at = {"KILL_AT": rng.randint(1, LAST_STEP)}
    if source.of_pushes and rng.random() < 0.6:
        at = {"KILL_PUSH": rng.randint(1, LAST_PUSH_STEP)}
    daemon.more |= {name: str(step) for name, step in at.items()}
    daemon.start()
    for name in at:
        del daemon.more[name]
    source.take(daemon)
    if daemon.lives:
        daemon.kill()
        return False
    assert daemon.process.wait(PATIENCE) == -signal.SIGKILL
    daemon.process = None
    return True


@pytest.mark.parametrize(
    "kind", [pytest.param(each, marks=() if each in EACH_RUN else pytest.mark.nightly) for each in KINDS]
)
def test_a_node_that_is_killed_again_and_again_loses_and_doubles_nothing(
    make_daemon: Callable[..., Any], kind: str, tmp_path: Path
) -> None:
    rng = random.Random(kind)
    folder = tmp_path / "source"
    folder.mkdir()
    daemon = make_daemon("a", ODFD_INGEST_VARIABLES="SHOP, ROWS", SHOP=PASSWORD)
    daemon.small = True
    with KINDS[kind](folder) as source:
        daemon.more |= source.environ
        daemon.start()
        (tmp_path / "m.yaml").write_text(source.manifest)
        daemon.ask("apply", "-f", str(tmp_path / "m.yaml"))
        source.take(daemon)  # there is nothing yet; a broker keeps messages from now on
        daemon.kill()
        rows = kills = 0
        for _ in range(LIVES):
            source.add(range(rows, rows + EACH_LIFE))
            daemon.more |= source.environ
            rows += EACH_LIFE
            kills += life(daemon, source, rng)
        assert kills >= LIVES // 4, "others came to the end of their source"
        daemon.start()
        while source.take(daemon):
            pass
        assert daemon.ask("verify", "orders")["ok"]
        daemon.ask("export", "orders", str(tmp_path / "out"))
    slices = [pq.read_table(path) for path in (tmp_path / "out" / "data").iterdir()]
    taken = sorted(
        pair
        for each in slices
        for pair in zip(each["offset"].to_pylist(), each[source.column].to_pylist(), strict=True)
    )
    ids = [each for _, each in taken]
    assert [each for each, _ in taken] == list(range(rows))
    assert (ids if source.in_order else sorted(ids)) == list(range(rows))
    assert not source.several or len(slices) > kills, "each pull that was killed had several transactions before it"
    assert daemon.stop() == 0

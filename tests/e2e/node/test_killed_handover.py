"""``kill -9`` of real processes after each effect of a rendition and its handover: the next one goes on there."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from worlds.eventually import PATIENCE

pytestmark = pytest.mark.e2e
FILES: Final = 3
OVER: Final = ("rendition", "handover", "cities", "1", "--id", "over")
COMMANDS: Final = (("rendition", "create", "cities", "--id", "anew"), OVER)
MANIFEST: Final = """kind: DatasetSnapshot
version: 1
content:
  name: cities
  kind: Root
  metadata:
    - kind: SetPollingSource
      fetch: {kind: FilesGlob, path: 'FOLDER/*.csv', order: ByName}
      read:
        kind: Csv
        header: true
        ddlSchema: ['event_time TIMESTAMP, city STRING, population BIGINT']
      merge: MERGE
"""


def declared(daemon: Any, folder: Path, merge: str) -> None:
    (folder / "m.yaml").write_text(MANIFEST.replace("FOLDER", str(folder)).replace("MERGE", merge))
    daemon.ask("apply", "-f", str(folder / "m.yaml"))


def life(daemon: Any, effect: int, commands: Sequence[Sequence[str]] = COMMANDS) -> bool:
    """Starts, is asked for the commands, and ends by itself after an effect; whether it did, or did all of them."""
    daemon.more["KILL_EFFECT"] = str(effect)
    daemon.start()
    del daemon.more["KILL_EFFECT"]
    for words in commands:
        said = daemon.said(*words)
        if said.code:
            assert "rule rendition" not in said.err, said.err
            assert daemon.process.wait(PATIENCE) == -signal.SIGKILL
            daemon.process = None
            return True
    daemon.kill()
    return False


def test_each_effect_survives_the_process_that_made_it(make_daemon: Callable[..., Any], tmp_path: Path) -> None:
    daemon = make_daemon("a", ODFD_INGEST_SETTLE_SECONDS="0", ODFD_POLICY_PUBLISH_DATASETS="false", small=True)
    daemon.start()
    declared(daemon, tmp_path, "{kind: Ledger, primaryKey: [city]}")
    daemon.ask("annotate", "dataset", "cities", "keepRaw=true")
    for day in range(1, FILES + 1):
        row = f"2024-01-0{day}T00:00:00Z,City {day},{day}"
        (tmp_path / f"d{day}.csv").write_text(f"event_time,city,population\n{row}\n")
        daemon.ask("pull", "cities")
    declared(daemon, tmp_path, "{kind: Append}")
    daemon.kill()
    kills = 0
    # What was done is told again at the start of each life: once in a creation, twice in a handover.
    while life(daemon, 2 if kills <= FILES else 3):
        kills += 1
        assert kills < 2 * FILES + 6, "no progress"
    assert kills >= FILES
    daemon.start()
    found = {each["number"]: (each["dataset"], each["state"]) for each in daemon.ask("get", "renditions")}
    assert found == {0: ("cities.r0", "Superseded"), 1: ("cities", "Active")}
    old, new = (
        {each["time"] for each in daemon.ask("raw", "list", ref)["captures"]} for ref in ("cities.r0", "cities")
    )
    assert old == new
    assert len(new) == FILES
    assert daemon.ask("raw", "replay", "cities")["ok"]
    assert daemon.ask("verify", "cities")["ok"]
    assert daemon.stop() == 0


def test_copying_what_came_after_a_snapshot_survives_the_process(
    make_daemon: Callable[..., Any], tmp_path: Path
) -> None:
    """Blocks are copied once each, whenever the process dies; both renditions contain the same rows in the end."""
    daemon = make_daemon("a", ODFD_INGEST_SETTLE_SECONDS="0", ODFD_POLICY_PUBLISH_DATASETS="true", small=True)
    daemon.start()
    declared(daemon, tmp_path, "{kind: Ledger, primaryKey: [city]}")
    for day in range(1, FILES + 1):
        row = f"2024-01-0{day}T00:00:00Z,City {day},{day}"
        (tmp_path / f"d{day}.csv").write_text(f"event_time,city,population\n{row}\n")
        daemon.ask("pull", "cities")
        if day == 1:
            daemon.ask("rendition", "create", "cities", "--from", "snapshot", "--id", "anew")
    daemon.kill()
    kills = 0
    while life(daemon, 2 if kills < FILES else 4, [OVER]):
        kills += 1
        assert kills < 2 * FILES + 6, "no progress"
    assert kills >= FILES
    daemon.start()
    found = {each["number"]: (each["dataset"], each["state"]) for each in daemon.ask("get", "renditions")}
    assert found == {0: ("cities.r0", "Superseded"), 1: ("cities", "Active")}
    old, new = ([row[4:] for row in daemon.ask("tail", ref, "-n", "9")["rows"]] for ref in ("cities.r0", "cities"))
    assert old == new
    assert len(new) == FILES
    assert all(daemon.ask("verify", ref)["ok"] for ref in ("cities", "cities.r0"))
    assert daemon.stop() == 0

"""A node that is killed again and again keeps its datasets fresh without a word, and nothing comes twice."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from typing import Any

import pytest

from odfd.cli.kinds import with_state
from worlds.eventually import PATIENCE
from worlds.manifests import BOTH

pytestmark = pytest.mark.e2e
FILES = 6
ROWS = 2000
STEPS = 8
"""Durable steps of a pull, at least."""
FLOW = """$schema: Flow
headers: {name: poll}
spec:
  target: Dataset:cities
  triggers: [{kind: Interval, interval: 1s}]
"""


def test_what_was_declared_appears_over_kills(make_daemon: Callable[..., Any]) -> None:
    rng = random.Random(20)
    alice = make_daemon(ODFD_FLOWS_FOLLOW="true", ODFD_FLOWS_COOLDOWN_SECONDS="1", small=True)
    alice.start()
    (alice.folder / "m.yaml").write_text(f"{BOTH}---\n{FLOW}")
    assert {item["action"] for item in alice.ask("apply", "-f", str(alice.folder / "m.yaml"))["items"]} == {"created"}
    for number in range(FILES):
        if number % 2:
            alice.kill()
            alice.more["KILL_AT"] = str(rng.randint(1, STEPS))
            alice.start()
            del alice.more["KILL_AT"]
        rows = [f"2024-01-{number + 1:02}T00:00:00Z,c{row * 7919 % 10007},{row}" for row in range(ROWS)]
        (alice.folder / f"{number:02}.csv").write_text("\n".join(["event_time,city,population", *rows, ""]))
        if number % 2:
            assert alice.process is not None
            assert alice.process.wait(PATIENCE) == -signal.SIGKILL, "the flow took the file, and died of it"
            alice.process = None
            alice.start()
    for name in ("cities", "towns"):
        alice.ask("wait", "dataset", name, "--for", f"records>={FILES * ROWS}", "--timeout", f"{PATIENCE:.0f}s")
    assert {one["records"] for one in alice.datasets()} == {FILES * ROWS}
    assert alice.ask("verify", "towns")["ok"]
    flows = {one["headers"]["name"]: with_state(one) for one in alice.ask("get", "flows")}
    assert set(flows) == {"poll", "towns"}
    assert {one["failures"] for one in flows.values()} == {0}
    assert alice.stop() == 0

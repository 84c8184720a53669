"""Another history through real daemons and ``odfctl``: every record stays, mirrors follow, and disk is freed."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from odfd.cli.kinds import with_state
from odfd.control import calls, wire
from odfd.control.client import ControlClient
from odfd.errors import Unreachable
from worlds import manifests
from worlds.eventually import PATIENCE, until

pytestmark = pytest.mark.e2e
FILES, ROWS = 4, 3000
"""Slices are larger than what the database takes in: they are files."""
STEPS = 12
"""Durable steps of a rewrite, at least."""


def published(daemon: Any) -> list[Any]:
    """Two datasets, the root of four slices; its records."""
    for number in range(FILES):
        rows = [f"2024-01-{number + 1:02}T00:00:00Z,c{row * 7919 % 10007},{row}" for row in range(ROWS)]
        (daemon.folder / f"{number}.csv").write_text("\n".join(["event_time,city,population", *rows, ""]))
    (daemon.folder / "m.yaml").write_text(manifests.BOTH)
    daemon.ask("apply", "-f", str(daemon.folder / "m.yaml"))
    pulled = {item["ref"]: item["outcome"] for item in daemon.ask("pull", "--all")["items"]}
    assert pulled["cities"] == "updated"
    assert pulled["towns"] in ("updated", "up-to-date"), "it follows its input, and may have been quicker"
    return records(daemon, "cities")


def records(daemon: Any, name: str) -> list[Any]:
    rows = daemon.ask("tail", name, "-n", "10000")["rows"]
    assert len(rows) == min(FILES * ROWS, 10_000)
    return list(rows)


def objects(daemon: Any) -> dict[str, int]:
    """Files of objects, and their sizes."""
    files = [path for path in (daemon.state / "objects").glob("[0-9a-f][0-9a-f]/*") if path.is_file()]
    return {path.name: path.stat().st_size for path in files}


def test_compaction_reset_and_collection(make_daemon: Callable[..., Any]) -> None:
    """With the real engine."""
    alice = make_daemon("a", ODFD_NODE_COLLECT_HOURS="0").start()
    rows = published(alice)
    before, old = alice.dataset("cities"), objects(alice)
    planned = alice.ctl("compact", "cities", "--max-slice-rows", "20000", "--dry-run")
    assert planned.out.startswith("cities: 7 blocks would become 4, the first 3 as they were\n"), planned
    assert objects(alice) == old
    done = alice.ask("compact", "cities", "--max-slice-rows", "20000")
    assert (done["outcome"], done["merged"], done["into"], done["epoch"]) == ("rewritten", FILES, 1, 1)
    assert records(alice, "cities") == rows
    report = alice.ask("verify", "cities", "--level", "data", "--full")
    assert (report["ok"], report["checked"]["slices"]) == (True, 1)
    after = alice.dataset("cities")
    assert (after["records"], after["blocks"]) == (before["records"], before["blocks"] - FILES + 1)
    assert alice.ask("trust", "show", "cities")["reach"]["use"] == after["blocks"]

    said = alice.ctl("pull", "towns")
    assert said.code == 4
    assert "(rule input-diverged)" in said.err
    assert "odfctl compact towns --keep-metadata-only" in said.err
    assert alice.ask("compact", "towns", "--keep-metadata-only", "--yes")["outcome"] == "rewritten"
    assert alice.ask("pull", "towns")["items"][0]["records"] == FILES * ROWS
    assert alice.ask("verify", "towns", "--level", "reproduced")["ok"]

    assert alice.ask("gc")["objects"] == 0, "the old slices were read a moment ago"
    plan = alice.ask("gc", "--dry-run")
    assert plan["objects"] >= FILES
    freed = {each["name"]: each["size"] for each in plan["listed"]}
    there = objects(alice)
    assert set(old) <= set(there)
    done = alice.ask("gc")
    assert (done["objects"], done["bytes"]) == (plan["objects"], plan["bytes"])
    assert objects(alice) == {name: size for name, size in there.items() if name not in freed}
    assert not set(old) & set(objects(alice))
    assert records(alice, "cities") == rows
    assert alice.ask("verify", "cities", "--level", "data", "--full")["ok"]

    said = alice.ctl("reset", "cities", "#99")
    assert (said.code, said.err) == (5, "error: there is no block #99\n  the chain has 4 blocks  (rule block-number)\n")
    said = alice.ctl("reset", "cities", "#3")
    assert said.code == 5
    assert "block #3 is the head" in said.err
    assert alice.ask("reset", "cities", "#2", "--yes")["blocks"] == 3
    assert alice.dataset("cities")["records"] in (0, None)
    assert alice.ask("pull", "cities")["items"][0]["records"] == FILES * ROWS
    assert [row[3:] for row in records(alice, "cities")] == [row[3:] for row in rows]
    assert alice.stop() == 0


def is_signed(alice: Any, blocks: int, epoch: int) -> bool:
    """Whether the head of an epoch is: after a kill that may be a moment after the start (ADR 3)."""
    shown = alice.ask("trust", "show", "cities")
    return (shown["reach"]["use"], shown["epoch"]) == (blocks, epoch)


@pytest.mark.parametrize("seed", range(int(os.environ.get("ODF_SOAK", "2"))))
def test_a_rewrite_that_is_killed_is_done_or_not(make_daemon: Callable[..., Any], seed: int) -> None:
    """Whatever the moment: one history or the other, its head signed, every record there; and work goes on."""
    lot = random.Random(seed)
    alice = make_daemon("a", small=True)
    alice.start()
    rows = published(alice)
    before = alice.dataset("cities")["blocks"]
    kills = 0
    for _ in range(3):
        alice.kill()
        alice.more["KILL_AT"] = str(lot.randint(1, STEPS))
        alice.start()
        del alice.more["KILL_AT"]
        request = wire.RewriteRequest(action="compact", max_slice_rows=20000)
        with suppress(Unreachable):  # it may be killed before it has answered
            ControlClient(alice.socket).do(calls.rewriting_rewrite("cities", request))
        assert alice.process.wait(PATIENCE) == -signal.SIGKILL
        alice.process = None
        kills += 1
        alice.start()
        probes = {probe["name"]: probe["result"] for probe in alice.ask("doctor")}
        assert {probes["database"], probes["trust ledger"]} == {"ok"}, probes
        held = alice.dataset("cities")
        assert held["blocks"] in (before, before - FILES + 1)
        rewritten = held["blocks"] < before
        until(partial(is_signed, alice, held["blocks"], epoch=int(rewritten)))
        assert records(alice, "cities") == rows
        assert alice.ask("verify", "cities", "--full")["ok"]
        if rewritten:
            break
    assert kills
    alice.ask("compact", "cities", "--max-slice-rows", "20000")
    assert alice.dataset("cities")["blocks"] == before - FILES + 1
    assert records(alice, "cities") == rows
    assert alice.ask("reset", "cities", "#2", "--yes")["epoch"] == 2
    assert alice.stop() == 0


def test_a_mirror_follows(make_daemon: Callable[..., Any]) -> None:
    """Two daemons with the small engine: policy says follow, and the mirror turns with each epoch."""
    alice = make_daemon("a", listens=True)
    bob = make_daemon("b", listens=True, ODFD_POLICY_REWRITE_FOLLOW="follow")
    for daemon in (alice, bob):
        daemon.small = True
        daemon.start()
    rows = published(alice)
    cities = alice.dataset("cities")["id"]
    alice.ask("network", "join", "n")
    bob.ask("network", "join", "n", "--bootstrap", alice.ask("status")["listen"][0])
    assert with_state(bob.ask("mirror", "add", cities, "--as", "theirs"))["state"] == "current"
    assert records(bob, "theirs") == rows
    said = bob.ctl("compact", "theirs")
    assert said.code == 4
    assert "theirs is not published by this node" in said.err
    for words in (
        ("compact", "cities"),
        ("compact", "cities", "--max-slice-rows", "20000"),
        ("reset", "cities", "#2", "--yes"),
    ):
        done = alice.ask(*words)
        if done["outcome"] == "unchanged":
            continue
        waited = bob.ctl(
            "wait", "dataset", "theirs", "--for", f"head={done['head']}", "--timeout", f"{PATIENCE:.0f}s", "-q"
        )
        assert waited.code == 0, (waited, bob.told()[-2000:])
        assert bob.ask("verify", "theirs")["ok"]
        shown = bob.ask("trust", "show", "theirs")
        assert (shown["epoch"], shown["reach"]["use"]) == (done["epoch"], done["blocks"])
    assert bob.dataset("theirs")["blocks"] == 3
    assert bob.stop() == alice.stop() == 0

"""A query changed under way, through a real daemon, engine and ``odfctl``: apply, pull, verify."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from odfd.cli.kinds import with_state
from worlds import manifests

pytestmark = pytest.mark.e2e
DAILY = (
    "select time_bucket(interval '1' day, event_time) as event_time, sum(population) as people from cities group by 1"
)
DOUBLED = DAILY.replace("sum(population)", "sum(population * 2)")
MONTHLY = DAILY.replace("'1' day", "'1' month").replace("people", "inhabitants")


def write(daemon: Any, day: int) -> None:
    rows = [f"2024-01-{day:02}T{hour:02}:00:00Z,c{hour},{hour}" for hour in range(3)]
    (daemon.folder / f"{day}.csv").write_text("\n".join(["event_time,city,population", *rows, ""]))


def apply(daemon: Any, query: str) -> Any:
    text = manifests.DERIVED.replace("select * from cities", query)
    (daemon.folder / "towns.yaml").write_text(text)
    return daemon.ctl("apply", "-f", str(daemon.folder / "towns.yaml"), "-o", "json")


def test_a_new_query_takes_over_and_every_range_is_reproduced(make_daemon: Callable[..., Any]) -> None:
    alice = make_daemon("a").start()
    (alice.folder / "cities.yaml").write_text(manifests.ROOT)
    for day in (1, 2, 3):
        write(alice, day)
    alice.ask("apply", "-f", str(alice.folder / "cities.yaml"))
    assert apply(alice, DAILY).json["items"][0]["action"] == "created"
    alice.ask("pull", "--all")
    assert [row[4] for row in alice.ask("tail", "towns")["rows"]] == [3, 3]

    assert apply(alice, DOUBLED).json["items"][0]["changes"] == ["SetTransform"]
    for day in (4, 5):
        write(alice, day)
    alice.ask("pull", "--all")
    assert [row[4] for row in alice.ask("tail", "towns")["rows"]] == [3, 3, 6, 6]
    assert alice.ask("verify", "towns", "--level", "reproduced")["checked"]["transforms"] == 2

    said = apply(alice, MONTHLY)
    assert said.code == 4
    assert "(rule transform-evolution)" in said.err
    assert "odfctl reset towns '#1'" in said.err
    assert alice.ask("reset", "towns", "#1", "--yes")["blocks"] == 2
    assert apply(alice, MONTHLY).json["items"][0]["changes"] == ["SetTransform"]
    (alice.folder / "cities.yaml").write_text(manifests.ROOT)
    (alice.folder / "6.csv").write_text("event_time,city,population\n2024-02-02T00:00:00Z,c1,1\n")
    alice.ask("pull", "--all")
    assert [row[4] for row in alice.ask("tail", "towns")["rows"]] == [15]
    assert alice.ask("verify", "towns", "--level", "reproduced")["ok"]


def test_nothing_is_made_under_the_pin_of_an_engine_that_is_not_here(make_daemon: Callable[..., Any]) -> None:
    alice, made_up = make_daemon("a").start(), "sha256:" + "d" * 64
    (alice.folder / "cities.yaml").write_text(manifests.ROOT)
    write(alice, 1)
    alice.ask("apply", "-f", str(alice.folder / "cities.yaml"))
    text = manifests.DERIVED.replace("engine: spark", f"engine: spark\n        version: '{made_up}'")
    (alice.folder / "towns.yaml").write_text(text)
    refused = alice.ctl("apply", "-f", str(alice.folder / "towns.yaml"))
    assert (refused.code, "(rule engine-not-here)" in refused.err, "--force" in refused.err) == (4, True, True)
    forced = alice.ctl("apply", "--force", "-f", str(alice.folder / "towns.yaml"))
    assert (forced.code, "nothing is computed until it is (rule engine-changed)" in forced.err) == (0, True)
    pulled = alice.ctl("pull", "--all")
    assert (pulled.code, "(rule engine-changed)" in pulled.err) == (4, True), pulled.err
    assert "odfctl engine prove towns" in pulled.err
    told = alice.ctl("doctor").out
    assert "odfctl engine prove towns" in told
    assert "blocked" in alice.ctl("status").out
    assert "blocked" in alice.ctl("get", "datasets").out
    assert "it is another here" in alice.ctl("describe", "dataset", "towns").out
    proven = alice.ctl("engine", "prove", "towns")
    digest = with_state(alice.ask("get", "engine", "spark"))["digest"]
    assert (proven.code, made_up in proven.out, digest in proven.out) == (0, True, True), proven.out
    assert alice.ctl("pull", "--all").code == 0
    assert len(alice.ask("tail", "towns")["rows"]) == 3
    assert alice.ask("verify", "towns", "--level", "reproduced")["ok"]
    assert "blocked" not in alice.ctl("status").out

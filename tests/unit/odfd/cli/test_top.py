"""``odfctl top``: rates and needs are computed of the API's values, and keys work on a terminal that is none."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from textual.widgets import DataTable, Static

from chain.instant import Instant
from odfd import output
from odfd.cli.main import main
from odfd.cli.top.app import MOST, TopApp
from odfd.cli.top.polling import NodePoller, PollAnswers, list_unmended, needs, rates
from odfd.control import wire
from odfd.control.client import Answer
from odfd.errors import ExitCode, Unreachable
from worlds.clock import FixedClock

HOSTILE = "[bold]x[/nothing]\x1b[2J"


def status(**more: Any) -> wire.Status:
    return wire.Status(node_id="did:key:z6", version="1", name="alice", datasets={"fresh": 2}, **more)


def mirror(have: int, key: str = "did:odf:a", name: str = "a") -> wire.ResourceManifest:
    told = {"x/State": {"value": {"state": "syncing", "bytes": {"have": have, "want": 10**9}}}}
    headers = {"id": key, "name": name}
    return wire.ResourceManifest(schema="Mirror", headers=headers, spec={}, status={"conditions": told})


def peer(key: str, *, connected: bool) -> wire.ResourceManifest:
    return manifest("Peer", key, {"connected": connected}, peerId=key, blocked=False)


def dataset(name: str, **state: Any) -> wire.ResourceManifest:
    return manifest("Dataset", name, state)


def manifest(type_: str, name: str, state: Mapping[str, Any], **spec: Any) -> wire.ResourceManifest:
    told = {"x/State": {"value": state}}
    return wire.ResourceManifest(schema=type_, headers={"name": name}, spec=spec, status={"conditions": told})


def task(key: str, state: Any, done: int = 0, unit: str = "bytes") -> wire.ResourceManifest:
    now = wire.TaskState(kind="ingest", target=HOSTILE, state=state, done=done, total=10**7, unit=unit)
    told = {"x/State": {"value": msgspec.to_builtins(now)}}
    return wire.ResourceManifest(schema="Task", headers={"name": key}, spec={}, status={"conditions": told})


def look(at: float = 0.0, **more: Any) -> PollAnswers:
    said = {"status": status(), "tasks": [], "mirrors": [], "peers": [], "datasets": [], "probes": []}
    return PollAnswers(at=at, **{**said, **more})


def test_rates_are_of_what_moved_between_two_looks() -> None:
    before = look(10.0, mirrors=[mirror(0), mirror(5, "did:odf:b")], tasks=[task("t1", "running", 10)])
    now = look(
        12.0,
        mirrors=[mirror(2_000_000), mirror(5, "did:odf:b"), mirror(7, "did:odf:new")],
        tasks=[task("t1", "running", 30), task("t2", "running", 9), task("t3", "running", 9, "blocks")],
    )
    assert rates(before, now) == {"did:odf:a": 1_000_000, "t1": 10}
    assert rates(None, now) == rates(now, now) == rates(now, before) == {}


def test_what_needs_a_person_is_told_worst_first() -> None:
    failing = wire.FlowCounts(flows=1, failing={"hourly": 2})
    found = needs(
        look(
            status=status(flows=failing, lost_journals=1),
            datasets=[
                dataset("fine", kind="root", blocks=1),
                dataset("bad", kind="derivative", blocks=1, state="refuted"),
                dataset("old", kind="root", blocks=1, conditions=("Stale",)),
            ],
            probes=[wire.Probe(name="disk", result="failed", message="full", hint="free some")],
            tasks=[task(f"t{n}", "failed") for n in range(8)],
        )
    )
    assert [(need.state, need.what) for need in found[:5]] == [
        ("failed", "disk"), ("refuted", "bad"), ("stopped", "signing"), ("failed", "hourly"), ("stale", "old"),
    ]  # fmt: skip
    assert [need.what for need in found if need.rank == 3].count("3 more tasks") == 1
    assert needs(look()) == []


def test_a_failure_that_the_same_work_mended_needs_nobody() -> None:
    def one(kind: str, at: int, state: Any = "done", finding: str = "", target: str = "a") -> wire.TaskState:
        return wire.TaskState(kind=kind, target=target, state=state, finding=finding, started_at=f"{at:02}")

    tasks = [
        one("pull", 1, "failed"), one("pull", 2, finding="bad line"), one("pull", 3), one("pull", 4, finding="again"),
        one("apply", 5, "failed"), one("apply", 6, target="b"), one("verify", 7, finding="damage"), one("verify", 8),
    ]  # fmt: skip
    assert [each.started_at for each in list_unmended(tasks)] == ["04", "05", "07"]


class Asked:
    """A client that answers with values of the wire, and counts."""

    def __init__(self) -> None:
        self.paths: list[str] = []

    def do(self, call: Any) -> Any:
        self.paths.append(call.path)
        if call.kind() is wire.ResourceList:
            return Answer(wire.ResourceList(resource_version="", items=()), {"items": []})
        return Answer(status() if call.path == "/node/v1alpha1/status" else [], None)


def test_what_costs_a_step_for_each_dataset_is_asked_seldom() -> None:
    client, clock = Asked(), FixedClock(Instant(0))
    looker = NodePoller(client, clock)  # type: ignore[arg-type]
    for _ in range(11):
        looker.look()
        clock.advance(10**9)
    assert (
        client.paths.count("/node/v1alpha1/status"),
        client.paths.count("/dataset/v1alpha1/datasets"),
        client.paths.count("/node/v1alpha1/doctor"),
    ) == (11, 2, 2)


def run(looks: Any, scene: Any) -> None:
    """``scene`` drives the view over what ``looks`` answers."""

    async def driven() -> None:
        app = TopApp(looks, lambda: Instant(0), every=3600)
        async with app.run_test(size=(140, 50)) as pilot:
            await app.workers.wait_for_complete()
            await pilot.pause()
            await scene(app, pilot)

    asyncio.run(driven())


def cells(app: TopApp, part: str) -> list[list[str]]:
    table = app.query_one(f"#{part}", DataTable)
    return [[str(cell) for cell in table.get_row_at(n)] for n in range(table.row_count)]


def head(app: TopApp) -> str:
    return str(app.query_one("#node", Static).render())


@pytest.mark.slow
def test_tables_tell_what_moves_and_strangers_text_stays_text() -> None:
    said = iter(
        [
            look(0.0, mirrors=[mirror(0, name=HOSTILE)], tasks=[task("t1", "running", 0)]),
            look(2.0, mirrors=[mirror(3_000_000, name=HOSTILE)], tasks=[task("t0", "done"), task("t1", "running", 1)]),
        ]
    )

    async def scene(app: TopApp, pilot: Any) -> None:
        assert cells(app, "mirrors")[0][0] == "[bold]x[/nothing]�[2J"
        assert "1.5 MB/s" not in cells(app, "mirrors")[0]
        await pilot.press("r")
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert "1.5 MB/s" in cells(app, "mirrors")[0]
        assert [row[0] for row in cells(app, "tasks")] == ["t1", "t0"]
        assert "alice" in head(app)
        assert not app.query_one("#peers", DataTable).display

    run(lambda: next(said), scene)


@pytest.mark.slow
def test_keys_go_to_tables_rest_and_leave() -> None:
    peers = [peer(f"12D{n}", connected=n == 7) for n in range(MOST + 50)]
    asked: list[int] = []

    def looks() -> PollAnswers:
        asked.append(1)
        return look(float(len(asked)), peers=peers, probes=[wire.Probe(name="d", result="warning", message="m")])

    async def scene(app: TopApp, pilot: Any) -> None:
        assert len(cells(app, "peers")) == MOST
        assert cells(app, "peers")[0][:2] == ["12D7", "connected"]
        assert "250, the first 200" in str(app.query_one("#peers-title", Static).render())
        await pilot.press("4", "down", "down")
        assert app.focused is app.query_one("#peers", DataTable)
        await pilot.press("space")
        assert "at rest" in head(app)
        before = len(asked)
        app._again()
        await pilot.press("r")
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert len(asked) == before + 1, "at rest it looks when it is told to, and not by itself"
        assert app.query_one("#peers", DataTable).cursor_row == 2
        await pilot.press("q")
        assert not app.is_running

    run(looks, scene)


@pytest.mark.slow
def test_a_node_that_went_away_is_told_over_what_was_seen() -> None:
    gone = [False]

    def looks() -> PollAnswers:
        if gone[0]:
            raise Unreachable("the daemon is gone", hint="start it")
        return look(mirrors=[mirror(1)])

    async def scene(app: TopApp, pilot: Any) -> None:
        gone[0] = True
        await pilot.press("r")
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert head(app) == "the daemon is gone: start it"
        assert len(cells(app, "mirrors")) == 1

    run(looks, scene)


@pytest.mark.parametrize("words", [["top"], ["top", "-o", "json"]])
def test_without_a_terminal_it_is_refused(words: list[str], tmp_path: Path, capsys: Any) -> None:
    assert main(["--socket", str(tmp_path / "s"), *words]) == ExitCode.USAGE
    assert "needs a terminal" in capsys.readouterr().err


def test_without_its_extra_it_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(output, "is_terminal", lambda: True)
    monkeypatch.setattr(output, "draws", lambda: True)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert main(["--socket", str(tmp_path / "s"), "top"]) == ExitCode.REFUSED
    assert "pip install 'odfd[top]'  (rule top-extra)" in capsys.readouterr().err

"""A watch goes on while its daemon is away, and ``odfctl top`` shows what is asked again and again."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.widgets import DataTable, Static

from chain.instant import SECOND, Instant
from odfd import output
from odfd.cli.main import main
from odfd.cli.top.app import MOST, TopApp
from odfd.cli.top.polling import NodePoller, PollAnswers, list_unmended, needs, rates
from odfd.cli.watch_retry import FIRST_PAUSE, LONGEST_PAUSE, Outage, WatchPosition, ask_again, resume
from odfd.control import wire
from odfd.control.client import Answer
from odfd.errors import ExitCode, Unreachable
from worlds.clock import FixedClock

# A watch goes on while its daemon is away for a time: nothing is told twice, nothing is left out.


@dataclass
class Speaker:
    """What a session has of time, output and client; nobody waits."""

    now: int = 0
    said: list[str] = field(default_factory=list)
    slept: list[float] = field(default_factory=list)

    @property
    def clock(self) -> Speaker:
        return self

    @property
    def client(self) -> Speaker:
        return self

    def monotonic(self) -> int:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += int(seconds * SECOND)

    def remark(self, text: str) -> None:
        self.said.append(text)

    def lost_connection(self) -> Unreachable:
        return gone()


def gone() -> Unreachable:
    return Unreachable("the daemon at s went away", rule="connection")


def test_pauses_grow_to_a_bound_and_are_short_again_after_a_steady_connection() -> None:
    outage = Outage()
    assert outage.came(0) == ""
    pauses, said = zip(*(outage.note_fault(0, gone()) for _ in range(9)), strict=True)
    assert pauses == (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, LONGEST_PAUSE, LONGEST_PAUSE, LONGEST_PAUSE)
    assert said == ("the daemon at s went away; asking again until it is back (^C ends this)",) + ("",) * 8
    assert outage.came(SECOND) == "the daemon is back"
    assert outage.came(SECOND) == ""
    assert outage.note_fault(2 * SECOND, gone())[0] == LONGEST_PAUSE
    outage.came(3 * SECOND)
    assert outage.note_fault(20 * SECOND, gone())[0] == FIRST_PAUSE


def test_a_daemon_that_was_never_reached_is_a_failure_at_once() -> None:
    session: Any = Speaker()

    def open_(_: Callable[[], None]) -> Iterator[int]:
        raise gone()

    with pytest.raises(Unreachable):
        next(resume(session, open_))
    with pytest.raises(Unreachable):
        ask_again(session, lambda: next(open_(lambda: None)), Outage(), lambda: 1.0)
    assert (session.said, session.slept) == ([], [])


def test_a_stream_that_ends_or_breaks_is_opened_again() -> None:
    session: Any = Speaker()
    turns: list[Any] = [[1, 2], gone(), [], [3]]

    def open_(begun: Callable[[], None]) -> Iterator[int]:
        turn = turns.pop(0)
        if isinstance(turn, Unreachable):
            raise turn
        begun()
        yield from turn

    found = resume(session, open_)
    assert [next(found) for _ in range(3)] == [1, 2, 3]
    assert session.slept == [0.1, 0.2, 0.4]
    lost = "the daemon at s went away; asking again until it is back (^C ends this)"
    assert session.said == [lost, "the daemon is back"] * 2


def test_an_answer_is_waited_for_as_long_as_there_is_time() -> None:
    session: Any = Speaker()
    outage, answers = Outage(), ["a", gone(), gone(), "b"]

    def ask() -> str:
        answer = answers.pop(0)
        if isinstance(answer, Unreachable):
            raise answer
        return answer

    assert [ask_again(session, ask, outage, lambda: 9.0) for _ in range(2)] == ["a", "b"]
    assert session.slept == [0.1, 0.2]
    answers += [gone()]
    with pytest.raises(Unreachable):
        ask_again(session, ask, outage, lambda: 0.0)


@given(
    standing=st.integers(0, 4), later=st.integers(0, 6), since=st.booleans(),
    cuts=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 3)), max_size=5),
)  # fmt: skip
def test_each_change_is_told_once_over_any_cuts(
    standing: int, later: int, since: bool, cuts: list[tuple[int, int]]
) -> None:
    """A log of numbers: ``standing`` of them before the watch, ``later`` ones while it is cut at any lines."""
    newest, at = standing, WatchPosition[tuple[str, int]]("0" if since else "")
    told: list[tuple[str, int]] = []

    def stream(version: str, upto: int) -> Iterator[tuple[str, int]]:
        begin = upto if version == "" else int(version)
        yield from (("Added", number) for number in range(1, upto + 1) if version == "")
        yield "Bookmark", begin
        yield from (("Modified", number) for number in range(begin + 1, upto + 1))

    for cut, more in [*cuts, (100, later)]:
        at.begin()
        for number, line in enumerate(stream(at.version, newest)):
            if number == cut:
                break
            told += at.take(line[0], str(newest if line[0] == "Added" else line[1]), line)
        newest += more
    at.begin()
    for line in stream(at.version, newest):
        told += at.take(line[0], str(newest if line[0] == "Added" else line[1]), line)
    assert [op for op, _ in told].count("Bookmark") == 1
    assert [number for op, number in told if op != "Bookmark"] == list(range(1, newest + 1))


def test_a_watch_begins_anew_when_rights_changed() -> None:
    at = WatchPosition[str]("")
    at.begin()
    assert [at.take("Added", "7", "a"), at.take("Bookmark", "7", "b"), at.take("Reset", "7", "r")] == [
        [], ["a", "b"], ["r"],
    ]  # fmt: skip
    at.begin()
    assert at.version == ""
    assert at.take("Added", "9", "c") == []
    assert at.take("Bookmark", "9", "d") == ["c", "d"]


# ``odfctl top``: rates and needs are computed of the API's values, and keys work on a terminal that is none.

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
    """Attack T-CARD-03: names and messages with markup or terminal commands, on the screen of `odfctl top`.

    Defence: control characters in each cell are replaced, and cells are text, never markup.
    """
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

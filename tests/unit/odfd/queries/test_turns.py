"""Turns, deadlines and doors of queries."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from chain.errors import Refused
from config.load import load
from config.schema import ConfigError, opened_doors
from engines.errors import LimitExceeded
from engines.query.frames import ROWS, frame
from engines.query.reader import QueryLimits
from odfd.control import wire
from odfd.node.settings_check import check_components
from odfd.queries.askers import OWNER_ITSELF, Crowd, QueryCaller
from odfd.queries.doors import BUSY, Door, load_door
from odfd.runtime import extensions
from odfd.runtime.extensions import DOORS
from odfd.services.queries.fair_turns import LAST_FRAME, WAITING, FairTurns
from odfd.services.queries.service import QueryService

# Turns of queries, in virtual time: who asks without end keeps nobody out.

READERS, MOST = 4, 2
"""Places, and those of strangers."""
SHARE = Crowd.STRANGERS.value


class Askers:
    """Callers of two turns, and what became of each of their queries."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.turns = FairTurns(READERS)
        self._nursery = nursery
        self.told: list[tuple[str, str, float]] = []
        """QueryCaller, the rule by which its query ended (empty: answered), and when."""

    async def ask(self, caller: str, seconds: float, *, sends: bool = False) -> None:
        """Names of accounts are words; others are blocks of addresses."""
        if caller == OWNER_ITSELF.name:
            known = OWNER_ITSELF
        else:
            known = QueryCaller(Crowd.ACCOUNTS if caller.isalpha() else Crowd.STRANGERS, caller)
        try:
            async with self.turns.one(known) as sending:
                if sends:
                    with sending():
                        await trio.sleep(seconds)
                await trio.sleep(seconds)
        except (LimitExceeded, Refused) as fault:
            self.told.append((caller, fault.rule, trio.current_time() - self.began))
        else:
            self.told.append((caller, "", trio.current_time() - self.began))

    async def begin(self, caller: str, seconds: float = 1e6, *, again: bool = False, sends: bool = False) -> None:
        """Lets a caller ask, and ``again`` as soon as it is told anything. Returns when it waits, or is at work."""
        self.began = getattr(self, "began", trio.current_time())

        async def asking() -> None:
            await self.ask(caller, seconds, sends=sends)
            while again:
                if self.told[-1][1] == BUSY:
                    await trio.sleep(0.1)
                await self.ask(caller, seconds)

        self._nursery.start_soon(asking)
        await trio.testing.wait_all_tasks_blocked()

    def ends(self, caller: str) -> list[tuple[str, float]]:
        return [(rule, when) for who, rule, when in self.told if who == caller]


@pytest.mark.parametrize("strangers", [("1.1.1.0/24", "2.2.2.0/24"), ("", "")])
async def test_two_endless_queries_keep_nobody_out(
    autojump_clock: trio.testing.MockClock, strangers: tuple[str, str]
) -> None:
    """Each is ended when another waits, however soon it asks again. Without a name it is one of a proxy's clients."""
    async with trio.open_nursery() as nursery:
        crowd = Askers(nursery)
        for stranger in strangers:
            await crowd.begin(stranger, again=True)
        await trio.sleep(100 * SHARE)
        assert not crowd.told, "while nobody waits they go on"
        for number in range(10):
            asked = trio.current_time()
            await crowd.ask(f"9.9.{number}.0/24", 1.0)
            assert trio.current_time() - asked <= SHARE + 1.0
        assert [rule for who, rule, _ in crowd.told if who.startswith("9.")] == [""] * 10
        assert {rule for who, rule, _ in crowd.told if not who.startswith("9.")} == {"query-share"}
        nursery.cancel_scope.cancel()


async def test_queries_of_one_caller_end_each_other_not(autojump_clock: trio.testing.MockClock) -> None:
    async with trio.open_nursery() as nursery:
        crowd = Askers(nursery)
        for _ in range(3):
            await crowd.begin("1.1.1.0/24", 5 * SHARE)
        await trio.sleep(20 * SHARE)
        assert crowd.ends("1.1.1.0/24") == [("", 5 * SHARE), ("", 5 * SHARE), ("", 10 * SHARE)]


async def test_the_turn_is_of_who_had_the_fewest(autojump_clock: trio.testing.MockClock) -> None:
    """Sixteen of one caller in line: one of another is answered before all but those at work."""
    async with trio.open_nursery() as nursery:
        crowd = Askers(nursery)
        for _ in range(MOST + WAITING):
            await crowd.begin("1.1.1.0/24", again=True)
        await crowd.begin("2.2.2.0/24", 1.0)
        await crowd.begin("3.3.3.0/24", 1.0)
        await trio.sleep(SHARE + 2.0)
        assert crowd.ends("2.2.2.0/24") == crowd.ends("3.3.3.0/24") == [("", SHARE + 1.0)]
        nursery.cancel_scope.cancel()


async def test_a_full_line_is_left_by_who_fills_it(autojump_clock: trio.testing.MockClock) -> None:
    async with trio.open_nursery() as nursery:
        crowd = Askers(nursery)
        for _ in range(MOST + WAITING + 3):
            await crowd.begin("1.1.1.0/24")
        assert [rule for rule, _ in crowd.ends("1.1.1.0/24")] == [BUSY] * 3
        for number in range(WAITING - 1):
            await crowd.begin(f"9.9.{number}.0/24")
        assert [rule for rule, _ in crowd.ends("1.1.1.0/24")] == [BUSY] * (3 + WAITING - 1)
        await crowd.begin("8.8.8.0/24")
        assert crowd.ends("8.8.8.0/24")[0][0] == BUSY, "sixteen others wait, with one query each"
        nursery.cancel_scope.cancel()


async def test_a_frame_that_is_sent_is_sent_whole(autojump_clock: trio.testing.MockClock) -> None:
    """Its share is over in the middle of it: the rest goes out, but for a client that does not read."""
    async with trio.open_nursery() as nursery:
        crowd = Askers(nursery)
        await crowd.begin("1.1.1.0/24", SHARE + 3.0, sends=True)
        await crowd.begin("2.2.2.0/24", sends=True)
        await crowd.begin("3.3.3.0/24")
        await crowd.begin("4.4.4.0/24")
        await trio.sleep(10 * SHARE)
        assert crowd.ends("1.1.1.0/24") == [("query-share", SHARE + 3.0)]
        assert crowd.ends("2.2.2.0/24") == [("query-share", SHARE + LAST_FRAME)]
        nursery.cancel_scope.cancel()


async def test_who_leaves_gives_the_turn_back(autojump_clock: trio.testing.MockClock) -> None:
    turns = FairTurns(2)
    async with trio.open_nursery() as nursery:
        crowd = Askers(nursery)
        crowd.turns = turns
        with trio.CancelScope() as leaving:
            async with trio.open_nursery() as clients:

                async def stay(begun: Callable[[], None] = leaving.cancel) -> None:
                    async with turns.one(QueryCaller(Crowd.STRANGERS, "1.1.1.0/24")):
                        await trio.sleep(1.0)
                        begun()
                        await trio.sleep_forever()

                clients.start_soon(stay)
                clients.start_soon(stay)
        await crowd.begin("1.1.1.0/24", 1.0)
        await trio.sleep(2.0)
        assert crowd.ends("1.1.1.0/24") == [("", 1.0)]


async def test_one_account_keeps_out_no_other_and_none_the_owner(autojump_clock: trio.testing.MockClock) -> None:
    """The first asks without end, with as many queries as it likes; strangers do likewise."""
    async with trio.open_nursery() as nursery:
        crowd = Askers(nursery)
        for _ in range(READERS + 3):
            await crowd.begin("mallory", again=True)
            await crowd.begin("6.6.6.0/24", again=True)
        asked = trio.current_time()
        for _ in range(5):
            await crowd.ask("owner", 1.0)
        assert trio.current_time() - asked == 5.0, "a place is left to the owner"
        for number in range(5):
            asked = trio.current_time()
            await crowd.ask(f"alice{chr(97 + number)}", 1.0)
            assert trio.current_time() - asked <= Crowd.ACCOUNTS.value + 1.0
        assert {rule for who, rule, _ in crowd.told if who.startswith("alice")} == {""}
        assert [rule for rule, _ in crowd.ends("owner")] == [""] * 5
        nursery.cancel_scope.cancel()


async def test_the_owner_is_ended_for_nobody_and_fills_all_places(autojump_clock: trio.testing.MockClock) -> None:
    async with trio.open_nursery() as nursery:
        crowd = Askers(nursery)
        for _ in range(READERS + WAITING + 1):
            await crowd.begin("owner", 5 * Crowd.ACCOUNTS.value)
        await crowd.begin("alice", 1.0)
        await trio.sleep(40 * Crowd.ACCOUNTS.value)
        rounds = -(-(READERS + WAITING + 1) // READERS)
        assert crowd.ends("owner")[-1] == ("", 5 * Crowd.ACCOUNTS.value * rounds)
        assert crowd.ends("alice") == [("", 5 * Crowd.ACCOUNTS.value + 1.0)], "it is the next to have a place"


@pytest.mark.parametrize("caller", ["alice", "1.1.1.0/24"])
async def test_with_one_place_it_goes_round(autojump_clock: trio.testing.MockClock, caller: str) -> None:
    async with trio.open_nursery() as nursery:
        crowd = Askers(nursery)
        crowd.turns = FairTurns(1)
        await crowd.begin(caller, again=True)
        await crowd.ask("owner", 1.0)
        assert crowd.ends("owner")[0][0] == ""
        assert crowd.ends(caller)[0][0] == "query-share"
        nursery.cancel_scope.cancel()


async def test_strangers_in_line_end_no_query_that_makes_no_room_for_them(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Two of them are at work, which is what they may have: an account's query is in nobody's way."""
    async with trio.open_nursery() as nursery:
        crowd = Askers(nursery)
        await crowd.begin("alice", 10 * Crowd.ACCOUNTS.value)
        for block in range(4):
            await crowd.begin(f"1.1.{block}.0/24", again=True)
        await trio.sleep(11 * Crowd.ACCOUNTS.value)
        assert crowd.ends("alice") == [("", 10 * Crowd.ACCOUNTS.value)]
        nursery.cancel_scope.cancel()


# The time of a query: what is under way is sent whole, so that the client can read why the rows end.

_SECONDS = 5.0
_ROWS = memoryview(frame(ROWS, b"rows"))


async def _answered(seconds_of_a_send: float) -> tuple[float, int]:
    """Sends rows without an end; returns when the query ended, and how many frames were sent whole."""
    processes: Any = SimpleNamespace(limits=QueryLimits(seconds=_SECONDS))
    service = QueryService(*([None, processes, None, None]))  # type: ignore[arg-type]
    head: Any = wire.QueryHead(pins=(), standing="data", standings=())
    sent: list[bytes] = []

    async def rows() -> AsyncGenerator[tuple[bytes, memoryview], None]:
        while True:
            await trio.lowlevel.checkpoint()
            yield ROWS, _ROWS

    async def send(data: bytes | memoryview) -> None:
        await trio.sleep(seconds_of_a_send)
        sent.append(bytes(data))

    async def signing(_kind: bytes, whole: memoryview) -> memoryview:
        return whole

    with pytest.raises(LimitExceeded, match="more than 5 s"):
        await service._pass_on(rows(), head, (send, send), signing, service._end)
    return trio.current_time(), len(sent)


@pytest.mark.parametrize(
    ("seconds", "end", "whole"),
    [(2.0, 6.0, 3), (4.0, 8.0, 2), (1000.0, _SECONDS + LAST_FRAME, 0)],
    ids=["often", "once", "a client that does not read"],
)
def test_at_the_deadline_a_frame_that_is_sent_is_sent_whole(seconds: float, end: float, whole: int) -> None:
    clock = MockClock(autojump_threshold=0)

    async def ended() -> tuple[float, int]:
        begun = trio.current_time()
        last, count = await _answered(seconds)
        return last - begun, count

    assert trio.run(ended, clock=clock) == (pytest.approx(end), whole)


# A door is found by its name where a setting opens it, loaded then alone, and refused where nobody installed it.


class OtherDoor(Door):
    """Of another package."""


class Entry:
    def load(self) -> type[Door]:
        return OtherDoor


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extensions, "extensions", lambda _: {"other": Entry()})


def loaded(folder: Path, text: str) -> Any:
    file = folder / "odfd.toml"
    file.write_text(text)
    return load({"HOME": str(folder)}, file)


def test_settings_say_which_doors_they_open(tmp_path: Path) -> None:
    assert opened_doors(loaded(tmp_path, "").settings) == {}
    site = '[http]\nlisten = ["127.0.0.1:0"]\nquery = true\n'
    text = f'[node]\ndoors = ["other"]\n{site}[flight]\nlisten = ["127.0.0.1:0"]\n'
    opened = {"flight": "flight.listen", "kamu": "http.query", "other": "node.doors"}
    assert opened_doors(loaded(tmp_path, text).settings) == opened


def test_every_door_of_a_setting_is_an_entry_point_that_is_a_door() -> None:
    own = {name: each.load() for name, each in extensions.extensions(DOORS).items()}
    assert {"flight", "kamu"} <= own.keys()
    assert all(issubclass(door, Door) for door in own.values())


@pytest.mark.usefixtures("added")
def test_a_door_of_another_package_is_loaded(tmp_path: Path) -> None:
    check_components(loaded(tmp_path, '[node]\ndoors = ["other"]\n'))
    assert load_door("other") is OtherDoor


@pytest.mark.usefixtures("added")
@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("node.doors", '[node]\ndoors = ["unknown"]\n'),
        ("flight.listen", '[flight]\nlisten = ["127.0.0.1:0"]\n'),
        ("http.query", '[http]\nlisten = ["127.0.0.1:0"]\nquery = true\n'),
    ],
)
def test_a_door_that_nobody_installed_is_refused_at_its_setting(setting: str, text: str, tmp_path: Path) -> None:
    settings = loaded(tmp_path, text)
    with pytest.raises(ConfigError) as refused:
        check_components(settings)
    (problem,) = refused.value.problems
    assert problem.place == settings.origins[setting]
    assert "are not installed" in problem.message
    assert "install the package that adds them" in problem.hint


def test_a_node_whose_settings_open_none_loads_none() -> None:
    program = "import sys, odfd.node.assembly; print(*{'odfd.flight', 'odfd.kamu'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []

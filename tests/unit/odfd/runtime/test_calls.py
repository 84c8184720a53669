"""Calls that are shared, awaited or in turns, and what is told of them."""

from __future__ import annotations

import errno
import importlib.util
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from chain.errors import Environment, Invalid, Refused
from chain.instant import SECOND, Instant
from config.load import load
from config.schema import ConfigError
from odfd.cli.main import main
from odfd.errors import ExitCode
from odfd.runtime import alarm as module
from odfd.runtime.alarm import WallAlarm, alarm_of
from odfd.runtime.buckets import address_of, open_store
from odfd.runtime.bus import Bus
from odfd.runtime.clock import SystemClock
from odfd.runtime.extensions import DOORS, EXPORTS, SOURCES, ExportFormats, extensions, load_extension
from odfd.runtime.hanging_calls import in_loop, invoke
from odfd.runtime.http_server import listening, parse_address, url_of
from odfd.runtime.ring import Lagged, Ring
from odfd.runtime.shared_calls import SharedCalls
from odfd.runtime.slots import KeyedLocks
from odfd.runtime.systemd import Notifier, check_shared, private_folders, take_sockets
from worlds.eventually import PATIENCE

# Calls that come at the same time share one piece of work; each gets its own answer, whoever goes away.


class Work:
    """Works when it is let go; answers with ten times the number, and refuses 13."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.go = threading.Semaphore(0)

    def __call__(self, asked: Sequence[int]) -> list[int | Exception]:
        self.batches.append(list(asked))
        self.go.acquire()
        if 99 in asked:
            raise ValueError("all fail")
        return [ValueError("unlucky") if each == 13 else 10 * each for each in asked]


async def ask(shared: SharedCalls[int, int], number: int, answers: list[int | str]) -> None:
    try:
        answers.append(await shared.call(number))
    except ValueError as error:
        answers.append(str(error))


async def begun(work: Work, batches: int) -> None:
    while len(work.batches) < batches:
        await trio.lowlevel.checkpoint()
    await trio.testing.wait_all_tasks_blocked()


async def test_calls_that_come_meanwhile_are_the_next_work_up_to_its_most() -> None:
    work, answers = Work(), list[int | str]()
    shared = SharedCalls(work, 3)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, shared, 1, answers)
        await begun(work, 1)
        for each in (2, 13, 4, 5):
            nursery.start_soon(ask, shared, each, answers)
            await trio.testing.wait_all_tasks_blocked()
        work.go.release(3)
    assert work.batches == [[1], [2, 13, 4], [5]]
    assert answers[0] == 10
    assert set(answers[1:4]) == {20, "unlucky", 40}
    assert answers[4:] == [50]


async def test_a_work_that_fails_fails_for_all_its_calls_and_no_others() -> None:
    work, answers = Work(), list[int | str]()
    shared = SharedCalls(work, 9)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, shared, 99, answers)
        await begun(work, 1)
        nursery.start_soon(ask, shared, 2, answers)
        work.go.release(2)
    assert answers == ["all fail", 20]


@pytest.mark.parametrize("gone", [0, 1, 2])
async def test_a_caller_that_goes_away_takes_no_other_along(gone: int) -> None:
    """The one at work, the one that would lead the next, and one among those."""
    work, answers = Work(), list[int | str]()
    shared, scopes = SharedCalls(work, 9), [trio.CancelScope() for _ in range(4)]

    async def cancellable(number: int) -> None:
        with scopes[number]:
            await ask(shared, number, answers)

    async with trio.open_nursery() as nursery:
        for each in range(4):
            nursery.start_soon(cancellable, each)
            await begun(work, 1)
            await trio.testing.wait_all_tasks_blocked()
        scopes[gone].cancel()
        await trio.testing.wait_all_tasks_blocked()
        work.go.release(2)
    assert set(answers) >= {10 * each for each in range(4) if each != gone}
    assert await call_again(shared, work) == 50


async def test_a_leader_that_goes_before_it_begins_hands_on() -> None:
    work, answers = Work(), list[int | str]()
    shared, scope = SharedCalls(work, 9), trio.CancelScope()

    async def leaving() -> None:
        with scope:
            await ask(shared, 1, answers)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, shared, 0, answers)
        await begun(work, 1)
        nursery.start_soon(leaving)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(ask, shared, 2, answers)
        await trio.testing.wait_all_tasks_blocked()
        pass_on = shared._pass_on

        def leave() -> None:  # in the moment in which it becomes the leader
            pass_on()
            scope.cancel()

        shared._pass_on = leave  # type: ignore[method-assign]
        work.go.release(2)
    assert work.batches == [[0], [2]]
    assert answers == [0, 20]


async def call_again(shared: SharedCalls[int, int], work: Work) -> int:
    work.go.release()
    return await shared.call(5)


# Blocking functions that are awaited.


class Shop:
    """Has one operation that blocks, and one that waits."""

    def open(self, name: str, *, times: int = 1) -> tuple[str, int]:
        """Says where it runs."""
        if not times:
            raise ValueError(name)
        return name * times, threading.get_ident()

    async def close(self, name: str) -> tuple[str, int]:
        await trio.lowlevel.checkpoint()
        return name, threading.get_ident()


async def test_a_plain_function_runs_beside_the_event_loop_and_an_async_one_in_it() -> None:
    shop, here = Shop(), threading.get_ident()
    name, thread = await invoke(shop.open, "a", times=3)
    assert name == "aaa"
    assert thread != here
    assert await invoke(shop.close, "b") == ("b", here)
    assert await invoke(partial(shop.close, "c")) == ("c", here)
    with pytest.raises(ValueError, match="a"):
        await invoke(shop.open, "a", times=0)


class Bell:
    """Rings in the event loop."""

    def __init__(self) -> None:
        self.rung: list[int] = []

    @in_loop
    def ring(self, note: int = 0) -> int:
        """Says where it rings; a bad note is its own fault."""
        if note < 0:
            raise RuntimeError("no such note")
        self.rung.append(threading.get_ident())
        return note


async def test_a_worker_calls_what_runs_in_the_loop() -> None:
    bell, here = Bell(), threading.get_ident()
    assert (bell.ring(1), await trio.to_thread.run_sync(bell.ring, 2)) == (1, 2)
    assert bell.rung == [here, here]
    with pytest.raises(RuntimeError, match="no such note"):
        await trio.to_thread.run_sync(bell.ring, -1)
    assert len(bell.rung) == 2, "not tried again"


def test_without_a_loop_it_is_called_as_it_is() -> None:
    assert Bell().ring(3) == 3


# Turns: one at a time at each thing, in the order of asking.


async def test_one_at_a_time_and_in_order() -> None:
    turns, done, waited = KeyedLocks(), list[str](), list[str]()
    gates = {name: trio.Event() for name in "abx"}

    async def work(thing: str, name: str) -> None:
        async with turns.of(thing, lambda: waited.append(name)):
            done.append(f"{name} begins")
            await gates[name].wait()
            done.append(f"{name} ends")

    async with trio.open_nursery() as nursery:
        for thing, name in (("one", "a"), ("one", "b"), ("other", "x")):
            nursery.start_soon(work, thing, name)
            await wait_all_tasks_blocked()
        assert (done, waited) == (["a begins", "x begins"], ["b"])
        for name in "abx":
            gates[name].set()
            await wait_all_tasks_blocked()
    assert done == ["a begins", "x begins", "a ends", "b begins", "b ends", "x ends"]


async def test_whoever_fails_or_gives_up_leaves_no_trace() -> None:
    turns = KeyedLocks()
    with pytest.raises(ZeroDivisionError):
        async with turns.of("it"):
            raise ZeroDivisionError
    async with turns.of("it"):
        with trio.move_on_after(0) as tired:
            async with turns.of("it"):
                pytest.fail("it is somebody's")
        assert tired.cancelled_caught
    async with turns.of("it"):
        pass
    assert not turns._locks


# A ring keeps the newest within its bounds, and each reader gets each item once, or is told how many it missed.


@given(most=st.integers(1, 6), most_size=st.integers(0, 20) | st.none(), sizes=st.lists(st.integers(0, 9), max_size=30))
def test_it_keeps_the_newest_within_both_bounds(most: int, most_size: int | None, sizes: list[int]) -> None:
    ring: Ring[int] = Ring(most, most_size)
    for size in sizes:
        ring.append(size, size)
    kept = ring.list_kept()
    assert [number for number, _ in kept] == list(range(len(sizes) - len(kept) + 1, len(sizes) + 1))
    assert [size for _, size in kept] == sizes[len(sizes) - len(kept) :]
    assert (ring.last, ring.oldest) == (len(sizes), len(sizes) - len(kept) + 1)
    fits = [size for size in range(len(sizes) + 1) if size <= most and _fits(sizes[len(sizes) - size :], most_size)]
    assert len(kept) == max(fits, default=0)


def _fits(newest: list[int], most_size: int | None) -> bool:
    return len(newest) <= 1 or most_size is None or sum(newest) <= most_size


async def test_a_slow_reader_is_told_what_it_missed(autojump_clock: trio.testing.MockClock) -> None:
    ring: Ring[str] = Ring(2)
    for item in "abcde":
        ring.append(item)
    async with aclosing(ring.follow(1)) as news:
        assert await anext(news) == Lagged(4, 2)
        assert [await anext(news), await anext(news)] == [(4, "d"), (5, "e")]
        with trio.move_on_after(1) as scope:
            await anext(news)
        assert scope.cancelled_caught


async def test_a_place_beyond_the_last_is_of_another_ring() -> None:
    ring: Ring[str] = Ring(2)
    ring.append("a")
    async with aclosing(ring.follow(7)) as news:
        assert await anext(news) == Lagged(1, None)
        assert await anext(news) == (1, "a")


@pytest.mark.parametrize("count", [1, 3])
async def test_a_nudge_wakes_all_readers(count: int) -> None:
    ring: Ring[int] = Ring(8)
    seen: list[object] = []

    async def read() -> None:
        async with aclosing(ring.follow()) as news:
            seen.append(await anext(news))

    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        ring.append(5)
        ring.nudge()
    assert seen == [(1, 5)] * count


# What happened in one feature is told to others, in order, where they want to hear it.


@dataclass(frozen=True)
class Moved:
    name: str


@dataclass(frozen=True)
class Gone:
    name: str


@dataclass(frozen=True)
class GoneForGood(Gone):
    """Not of the topic that it is derived from."""


def test_subscribers_are_called_in_their_order_with_values_of_their_topics() -> None:
    bus, heard = Bus(), list[tuple[str, str]]()
    bus.subscribe(lambda each: heard.append(("first", each.name)), Moved)
    bus.subscribe(lambda each: heard.append(("second", each.name)), Gone, Moved)
    for each in (Moved("a"), Gone("b"), GoneForGood("c")):
        bus.publish(each)
    assert heard == [("first", "a"), ("second", "a"), ("second", "b")]


def test_a_fault_reaches_who_published_and_nobody_after_it() -> None:
    bus, heard = Bus(), list[Moved]()

    def fail(_: Moved) -> None:
        raise ValueError("broken")

    bus.subscribe(heard.append, Moved)
    bus.subscribe(fail, Moved)
    bus.subscribe(heard.append, Moved)
    with pytest.raises(ValueError, match="broken"):
        bus.publish(Moved("a"))
    assert heard == [Moved("a")]


async def test_what_is_published_in_a_thread_is_heard_in_the_event_loop() -> None:
    bus, heard, here = Bus(), list[tuple[str, int]](), threading.get_ident()
    came = trio.Event()

    def hear(each: Moved) -> None:
        heard.append((each.name, threading.get_ident()))
        came.set()

    bus.subscribe(hear, Moved, soon=True)
    bus.publish(Moved("before the node runs"))
    bus.open()
    await trio.to_thread.run_sync(bus.publish, Moved("a"))
    await came.wait()
    assert heard == [("a", here)]


async def test_one_who_is_called_soon_does_not_hold_up_who_publishes() -> None:
    bus, heard = Bus(), list[str]()
    bus.open()
    bus.subscribe(lambda _: heard.append("soon"), Moved, soon=True)
    bus.subscribe(lambda _: heard.append("now"), Moved)
    bus.publish(Moved("a"))
    heard.append("went on")
    with trio.fail_after(PATIENCE):
        while "soon" not in heard:
            await trio.lowlevel.checkpoint()
    assert heard == ["now", "went on", "soon"]


# What the system gives a daemon: sockets, addresses, folders, alarms, packages.


# Notes and inherited sockets, against a real datagram socket and real file descriptors.


def test_notes_reach_the_manager(tmp_path: Path) -> None:
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.settimeout(PATIENCE)
        notifier = Notifier({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())})
        notifier.ready("listening on /x = y")
        notifier.reloading(5_000_123_000)
        notifier.alive()
        notifier.stopping("draining")
        notes = [manager.recv(4096).decode() for _ in range(4)]
    assert notes == [
        "READY=1\nSTATUS=listening on /x = y",
        "RELOADING=1\nMONOTONIC_USEC=5000123",
        "WATCHDOG=1",
        "STOPPING=1\nSTATUS=draining",
    ]
    assert notifier.watchdog_seconds == 30


def test_no_manager_and_a_dead_manager_are_nothing_to_die_of(tmp_path: Path) -> None:
    for environ in ({}, {"NOTIFY_SOCKET": str(tmp_path / "gone")}, {"NOTIFY_SOCKET": "@gone"}):
        Notifier(environ).ready("x")
    assert Notifier({"WATCHDOG_USEC": "1", "WATCHDOG_PID": "1"}).watchdog_seconds == 0
    assert Notifier({"WATCHDOG_USEC": "soon"}).watchdog_seconds == 0


def test_sockets_meant_for_another_process_are_left_alone() -> None:
    environ = {"LISTEN_FDS": "1", "LISTEN_PID": "1", "LISTEN_FDNAMES": "control"}
    assert take_sockets(environ) == {}
    assert environ == {}


@pytest.mark.slow
def test_sockets_are_taken_by_name(tmp_path: Path) -> None:
    program = (
        "import os\nfrom odfd.runtime.systemd import take_sockets\n"
        "environ = {'LISTEN_FDS': '1', 'LISTEN_PID': str(os.getpid()), 'LISTEN_FDNAMES': 'control'}\n"
        "taken = take_sockets(environ)\n"
        "print(taken['control'].getsockname(), environ, taken['control'].get_inheritable())\n"
    )
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        listener.listen()

        def put_at_three() -> None:
            os.dup2(listener.fileno(), 3)

        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", program],
            pass_fds=(3,) if listener.fileno() == 3 else (3, listener.fileno()),
            preexec_fn=put_at_three,
            capture_output=True,
            text=True,
            check=True,
            timeout=PATIENCE,
        )
    assert done.stdout.strip() == f"{path} {{}} False"


# Addresses to listen at are checked where settings are read, and told by the setting that names them.


@pytest.mark.parametrize("address", ["0.0.0.0:9464", "[::]:9464", "192.168.1.4:9464", "localhost:9464", "127.0.0.1"])
def test_figures_are_for_this_machine_alone(tmp_path: Path, address: str) -> None:
    file = tmp_path / "odfd.toml"
    file.write_text(f'[metrics]\nlisten = ["{address}"]\n')
    with pytest.raises(ConfigError, match=r"metrics\.listen.*not an address of this machine alone"):
        load({"HOME": str(tmp_path)}, file)


@pytest.mark.parametrize("address", ["127.0.0.1:0", "127.8.0.9:1", "[::1]:9464"])
def test_addresses_of_this_machine_are_taken(tmp_path: Path, address: str) -> None:
    file = tmp_path / "odfd.toml"
    file.write_text(f'[metrics]\nlisten = ["{address}"]\n')
    assert load({"HOME": str(tmp_path)}, file).settings.metrics.listen == (address,)


def test_a_port_in_use_is_told_by_its_setting() -> None:
    with listening(parse_address("127.0.0.1:0", "metrics.listen")) as first:
        place = parse_address(url_of(first).removeprefix("http://"), "metrics.listen")
        with pytest.raises(Environment, match="in use") as caught:
            listening(place)
        assert caught.value.rule == "metrics-listen"
        assert "metrics.listen" in caught.value.hint
    with pytest.raises(Invalid, match="no address"):
        parse_address("127.0.0.1:70000", "http.listen")


# A folder that only the daemon sees is refused: what a person has written there would be gone with the service.

OWN = """\
360 313 254:0 / / ro,nosuid,relatime shared:64 master:1 - ext4 /dev/vda rw
361 360 0:46 / /tmp rw,nosuid,nodev shared:80 master:2 - tmpfs tmpfs rw,size=2468412k
406 361 0:46 /systemd-private-08ed5e-odfd.service-nehx2C/tmp /tmp rw,nosuid,nodev shared:81 - tmpfs tmpfs rw
414 360 254:0 /var/tmp/systemd-private-08ed5e-odfd.service-nsS8CF/tmp /var/tmp rw,relatime - ext4 /dev/vda rw
"""
USUAL = "\n".join(OWN.splitlines()[:2])


def test_only_what_systemd_made_for_the_service_is_private() -> None:
    assert list(private_folders(OWN)) == ["/tmp", "/var/tmp"]
    assert list(private_folders(USUAL)) == []
    assert list(private_folders("nonsense\n\n")) == []


@pytest.mark.parametrize("folder", ["/tmp/backup", "/tmp", "/var/tmp/a/b"])
def test_a_folder_there_is_refused_with_what_to_do(folder: str) -> None:
    with pytest.raises(Refused, match="only the daemon sees") as told:
        check_shared(Path(folder), OWN)
    assert "ReadWritePaths=" in told.value.hint


def test_other_folders_are_taken_whether_they_are_there_or_not(tmp_path: Path) -> None:
    check_shared(tmp_path, USUAL)
    check_shared(tmp_path / "new", USUAL)
    check_shared(Path("/tmpfiles"), OWN)


def test_a_folder_that_may_not_be_opened_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "stat", refuse)
    with pytest.raises(Environment, match="may not open /root/out"):
        check_shared(Path("/root/out"), USUAL)


# An alarm of the system goes off at its time of day, and a worker that waits by it does nothing in between.


class OtherClock:
    def now(self) -> Instant:
        return Instant(0)

    def monotonic(self) -> int:
        return 0


async def rings(alarm: WallAlarm, act: Callable[[], None]) -> None:
    """Until it goes off."""
    rang = trio.Event()
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(alarm.run, rang.set)
            act()
            await rang.wait()
            nursery.cancel_scope.cancel()


async def test_it_goes_off_at_its_time_and_again_at_another() -> None:
    clock = SystemClock()
    with alarm_of(clock) as alarm:
        assert alarm is not None
        alarm.set(Instant(clock.now() + 3600 * SECOND))
        await rings(alarm, lambda: alarm.set(Instant(clock.now() + SECOND // 100)))
        await rings(alarm, lambda: alarm.set(Instant(-SECOND)))
        for never in (None, Instant(1 << 70)):
            alarm.set(never)
            with pytest.raises(BlockingIOError):
                os.read(alarm._file, 8)


async def test_a_clock_that_is_set_makes_it_go_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system tells so in place of the number of times."""

    def cancelled(file: int, size: int) -> bytes:
        monkeypatch.undo()
        os.read(file, size)
        raise OSError(errno.ECANCELED, os.strerror(errno.ECANCELED))

    with alarm_of(SystemClock()) as alarm:
        assert alarm is not None
        monkeypatch.setattr(module.os, "read", cancelled)
        await rings(alarm, lambda: alarm.set(Instant(1)))


async def test_there_is_none_by_another_clock_or_on_another_system(monkeypatch: pytest.MonkeyPatch) -> None:
    with alarm_of(OtherClock()) as alarm:
        assert alarm is None
    monkeypatch.setattr(module, "_library", object)
    with alarm_of(SystemClock()) as alarm:
        assert alarm is None


async def test_an_hour_passes_without_a_step(mock_clock: MockClock) -> None:
    """Virtual time: whatever waits by the clock of the event loop would be woken."""
    with alarm_of(SystemClock()) as alarm:
        assert alarm is not None
        alarm.set(Instant(SystemClock().now() + 3600 * SECOND))
        rang: list[None] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(alarm.run, lambda: rang.append(None))
            mock_clock.jump(3600)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        assert not rang


# What packages add is found by entry points, and loaded when it is used; a missing client is told with its extra.


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package of others that is installed: what pip writes of it."""
    metadata = tmp_path / "odfd_more-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: odfd-more\nVersion: 1.0\n")
    rows = [f"{name} = odfd_more:MORE\nBroken = odfd_more_missing:MORE\n" for name in ("More", "More", "describe.more")]
    groups = zip((SOURCES, DOORS, EXPORTS), rows, strict=True)
    (metadata / "entry_points.txt").write_text("\n".join(f"[{group}]\n{row}" for group, row in groups))
    (tmp_path / "odfd_more.py").write_text("MORE = 'more'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    extensions.cache_clear()
    yield
    extensions.cache_clear()
    sys.modules.pop("odfd_more", None)


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(("group", "name"), [(SOURCES, "More"), (DOORS, "More"), (EXPORTS, "describe.more")])
def test_what_a_package_adds_is_found_and_loaded_when_it_is_used(group: str, name: str) -> None:
    assert name in extensions(group)
    assert "odfd_more" not in sys.modules
    assert load_extension(group, name, "things", "thing-kind") == "more"


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("name", ["Unknown", "Broken"])
def test_what_is_not_installed_is_refused(name: str) -> None:
    with pytest.raises(Refused, match=f"doors of kind {name} are not installed") as caught:
        load_extension(DOORS, name, f"doors of kind {name}", "door-kind")
    assert caught.value.rule == "door-kind"
    assert caught.value.hint


@pytest.mark.usefixtures("package")
def test_formats_of_an_option_are_those_that_are_installed() -> None:
    formats = ExportFormats("describe", "plain")
    assert list(formats) == ["plain", "croissant", "frictionless", "more"]
    assert "more" in formats
    assert "huggingface" not in formats, "it is of another option"
    assert formats.load("more") == "more"
    with pytest.raises(Refused, match="exports as less are not installed"):
        formats.load("less")


def test_every_export_of_odfd_can_be_loaded() -> None:
    own = {name: each.load() for name, each in extensions(EXPORTS).items()}
    assert {name.partition(".")[0] for name in own} == {"describe", "events", "format", "site", "table"}


def test_an_unknown_format_is_told_with_those_that_are_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "weather", "a.csv", "--describe", "dublin-core"]) == ExitCode.USAGE
    assert "invalid choice: 'dublin-core' (choose from" in (told := capsys.readouterr().err)
    assert "croissant" in told


def test_a_client_that_is_not_installed_is_told_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    place = address_of("s3://readings", "eu-central-1")
    open_store(place, {})
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(Refused, match="buckets need a client, obstore, which is not installed") as caught:
        open_store(place, {})
    assert caught.value.rule == "bucket-extra"
    assert "pip install 'odfd[bucket]'" in caught.value.hint

"""Whoever asks somebody else leaves one who is slow, in time, and leaves at once when nobody waits any more.

One dripping server for all of them; the rows of tests/meta/waits.md name these cases. How long each waits is set short
here, and nothing but its own bounds ends a wait: a watchdog far beyond them fails the test.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest
import trio
import trio.testing

from chain.errors import Fault
from chain.instant import Instant
from chain.model.source import FetchUrl
from engines.client import GrpcEngine
from engines.io_plan import SandboxView
from engines.request_control import CallLimits
from engines.staging import Staging
from odfd.cli.commands import apply
from odfd.ingest.fetch.dispatch import fetch
from odfd.ingest.fetch.source import FetchJob
from odfd.ingest.settings import IngestSettings
from p2p.host.host import open_host
from p2p.host.limits import HostLimits
from p2p.identity import peer_of_seed
from p2p.kubo.rpc import AddedFile, Kubo
from p2p.web.client import Patience, Posts
from p2p.web.site import Web
from worlds.dripping import PAUSE, Dripping, Manner
from worlds.eventually import PATIENCE, became

QUICK: Final = Patience(connect=0.2, silence=0.2, span=0.2, least=1000, total=0.6)
PATIENT: Final = Patience(connect=1000, silence=1000, span=1000, total=1000)
SIZE: Final = 400_000
"""Bytes that are taken at most: fewer than those that STOPS gives before it stops."""

Ask: TypeAlias = Callable[[Dripping, Path], Awaitable[Any]]


async def _source(server: Dripping, folder: Path, **more: Any) -> None:
    settings = IngestSettings(staging=folder, patience=QUICK, max_source_bytes=10 * SIZE, **more)
    job = FetchJob(state=None, now=Instant(0), folder=folder, settings=settings)
    await fetch(FetchUrl(url=server.url + "/rows.csv"), job)


async def source(server: Dripping, folder: Path) -> None:
    await _source(server, folder)


async def strange_source(server: Dripping, folder: Path) -> None:
    await _source(server, folder, may_dial=lambda _: True)


async def secure_source(server: Dripping, folder: Path) -> None:
    """TLS is never answered: no manner of this server speaks it."""
    server.url = server.url.replace("http:", "https:")
    await _source(server, folder)


async def site_size(server: Dripping, _: Path) -> None:
    async with Web(QUICK) as web:
        await web.size_of(server.url + "/x")


async def site_small(server: Dripping, _: Path) -> None:
    async with Web(QUICK) as web:
        await web.cat(server.url + "/x", SIZE)


async def _all(content: Any) -> None:
    async with content as parts:
        async for _ in parts:
            pass


async def site_large(server: Dripping, _: Path) -> None:
    async with Web(QUICK) as web:
        await _all(web.open(server.url + "/x"))


async def kubo_question(server: Dripping, _: Path) -> None:
    async with Kubo(server.url, patience=QUICK) as kubo:
        await kubo.version()


async def kubo_small(server: Dripping, _: Path) -> None:
    async with Kubo(server.url, patience=QUICK) as kubo:
        await kubo.cat("/ipfs/x", SIZE)


async def kubo_large(server: Dripping, _: Path) -> None:
    async with Kubo(server.url, patience=QUICK) as kubo:
        await _all(kubo.open("/ipfs/x"))


async def kubo_folder(server: Dripping, _: Path) -> None:
    async with Kubo(server.url, patience=QUICK) as kubo:
        await _all(kubo.archive("/ipfs/x"))


async def kubo_given(server: Dripping, folder: Path) -> None:
    """More than the sockets of both ends hold: one who reads nothing is left too."""
    (folder / "large").write_bytes(bytes(16 << 20))
    async with Kubo(server.url, patience=QUICK) as kubo:
        await kubo.replace("/x", (folder / "large").read_bytes())
        await kubo.add("/x", [AddedFile("large", folder / "large")])


async def witness(server: Dripping, _: Path) -> None:
    async with Posts(QUICK.total) as posts:
        answer = await posts.post(server.url + "/add-checkpoint", b"x", SIZE)
        assert answer.status != 302, "a redirect is for the caller to understand"


async def peer(server: Dripping, _: Path) -> None:
    """The handshake of noise, which no manner of this server speaks."""
    limits = HostLimits(dial_timeout=QUICK.total)
    async with open_host(bytes(32), [], limits) as host:
        await host.connect(f"/ip4/127.0.0.1/tcp/{server.port}/p2p/{peer_of_seed(bytes([7]) * 32)}")


async def engine(server: Dripping, folder: Path) -> None:
    """It takes the connection, and never speaks gRPC."""
    (folder / "staging").mkdir(exist_ok=True)
    limits = CallLimits(work=QUICK.total, question=QUICK.total)
    client = GrpcEngine(f"127.0.0.1:{server.port}", Staging(folder / "staging"), SandboxView(folder, folder), limits)
    try:
        await client.identity()
    finally:
        client.close()


async def manifest(server: Dripping, _: Path) -> None:
    """``odfctl apply -f URL``, in a program of its own; what it fetches is text of any length."""
    await trio.to_thread.run_sync(lambda: list(apply.read(server.url + "/x.yaml")), abandon_on_cancel=True)


ASKS: Final[dict[str, Ask]] = {
    ask.__name__.strip("_").replace("_", "-"): ask
    for ask in (
        source, strange_source, secure_source, site_size, site_small, site_large, kubo_question, kubo_small,
        kubo_large, kubo_folder, kubo_given, witness, peer, engine, manifest,
    )
}  # fmt: skip
HEADERS_ALONE: Final = {"site-size"}
"""What the headers of an answer tell already, where they say how long its body is."""
SIZED: Final = {Manner.DRIPS_BODY, Manner.STOPS}


@asynccontextmanager
async def tried(manner: Manner) -> AsyncIterator[Dripping]:
    with Dripping(manner).open() as server, trio.fail_after(PATIENCE):
        yield server


pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def slow_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("p2p.kubo.rpc.SLOW_SECONDS", QUICK.silence)
    monkeypatch.setattr("odfd.cli.commands.apply.FETCH_SECONDS", QUICK.total)
    monkeypatch.setattr("p2p.kubo.rpc.ANSWER_SECONDS", QUICK.total)


@pytest.mark.parametrize("manner", Manner, ids=lambda manner: manner.name.lower())
@pytest.mark.parametrize("name", ASKS)
async def test_one_who_is_slow_is_left(
    name: str, manner: Manner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attack T-SOURCE-04: a source, site, Kubo, witness, peer or engine that does not answer, answers slowly, stops,
    never ends, or redirects in circles.

    Defence: each wait has limits (docs/waits.md).
    """
    async with tried(manner) as server:
        if name in HEADERS_ALONE and manner in SIZED:
            monkeypatch.setattr(f"{__name__}.QUICK", PATIENT)
            await ASKS[name](server, tmp_path)
        else:
            with pytest.raises((Fault, AssertionError)):
                await ASKS[name](server, tmp_path)


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch, slow_is_short: None) -> None:
    """Bounds that would last: the daemon is asked to stop, or a person is tired of it."""
    monkeypatch.setattr(f"{__name__}.QUICK", PATIENT)
    monkeypatch.setattr("p2p.kubo.rpc.SLOW_SECONDS", 1000)
    monkeypatch.setattr("p2p.kubo.rpc.ANSWER_SECONDS", 1000)


@pytest.mark.parametrize("manner", Manner, ids=lambda manner: manner.name.lower())
@pytest.mark.parametrize("name", ASKS)
async def test_nobody_waits_for_what_nobody_wants_any_more(
    endless: None, name: str, manner: Manner, tmp_path: Path
) -> None:
    """Attack T-SOURCE-04: a TLS handshake that a server never finishes, after the request was cancelled.

    Defence: a cancelled wait ends at once.

    Cancelled in the middle.
    """

    async def ask() -> None:
        with suppress(Fault, AssertionError):
            await ASKS[name](server, tmp_path)

    async with tried(manner) as server, trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        if manner is Manner.DEAF:
            await trio.testing.wait_all_tasks_blocked(0.05)
        else:
            assert await trio.to_thread.run_sync(server.taken.wait, PATIENCE), "nobody asked"
        nursery.cancel_scope.cancel()


class Leaving(trio.abc.Instrument):
    """Cancels before a step of the event loop; steps of the task that made it do not count."""

    def __init__(self, step: int, scope: trio.CancelScope) -> None:
        self.left, self._scope = step, scope
        self._maker = trio.lowlevel.current_task()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.left -= task is not self._maker
        if not self.left:
            self._scope.cancel()


MOMENTS: Final = 40
"""Steps until the last of them waits for the server, and some more."""


@pytest.mark.parametrize("manner", [Manner.SILENT, Manner.DRIPS_BODY], ids=lambda manner: manner.name.lower())
@pytest.mark.parametrize("name", sorted({*ASKS} - {"engine", "manifest"}))
def test_who_leaves_at_any_moment_leaves_nothing_open(
    endless: None, name: str, manner: Manner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No socket and no generator is left for the garbage collector, which finds it in the middle of other work."""

    asked = 0

    async def leave(step: int) -> bool:
        nonlocal asked

        async def ask() -> None:
            with suppress(Fault, AssertionError):
                await ASKS[name](server, tmp_path)
            nursery.cancel_scope.cancel()

        async with tried(manner) as server, trio.open_nursery() as nursery:
            leaving = Leaving(step, nursery.cancel_scope)
            trio.lowlevel.add_instrument(leaving)
            try:
                nursery.start_soon(ask)
                await became(lambda: server.asked)
                await trio.sleep(6 * PAUSE)
                nursery.cancel_scope.cancel()
            finally:
                trio.lowlevel.remove_instrument(leaving)
        asked += server.asked
        return leaving.left > 0

    told: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda said: told.append(said.exc_value))
    for step in range(1, MOMENTS):
        over = trio.run(leave, step)
        gc.collect()
        assert not told, (step, told)
        if over:
            break
    assert asked, "everybody left before the server was asked"

"""Runs Flight SQL: a confined process that speaks it, the sockets to and from it, and the listeners for clients.

A process that ends is started again after a growing pause; its clients connect anew, and nothing else is affected.
"""

from __future__ import annotations

import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Final

import trio

from chain.backoff import Backoff
from chain.errors import Environment
from config.check import is_loopback
from config.model import Flight
from engines.errors import EngineLost
from engines.flight import ASKED, READY, SERVED
from engines.query.installed import need_sql
from engines.sandbox.base import Job, Mount
from engines.sandbox.probe import SandboxChoice
from engines.sandbox.process import ConfinedProcess, start
from odfd.control.tokens import Tokens
from odfd.flight.backend import FlightBackend
from odfd.flight.relay import Relay
from odfd.queries.doors import Door, DoorNeeds
from odfd.runtime.http import Limits
from odfd.runtime.http_server import ConnectionHandler, HttpServer
from odfd.runtime.supervision import Child, Life, Restart
from odfd.runtime.tls import tls_context

MEMORY: Final = 2 << 30
"""Bytes of memory that the process may use."""
PROCESSES: Final = 512
"""Processes and threads that it may have."""
START_SECONDS: Final = 60.0
AGAIN: Final = Backoff(first=0.5, most=30.0)
_INSIDE: Final = PurePosixPath("/odf/flight")
_LAST_WORDS: Final = 2000


class FlightDoor(Door):
    """Flight SQL at addresses of its own."""

    def __init__(self, needs: DoorNeeds) -> None:
        self._settings, self._isolate = needs.settings.flight, needs.isolate
        self._version, self._logger = needs.version, needs.logger
        tokens = Tokens(
            Path(self._settings.tokens) if self._settings.tokens else None,
            "flight.tokens",
            required=not all(map(is_loopback, self._settings.listen)),
        )
        self._backend = FlightBackend(needs.readers, tokens, needs.logger)
        self.process: ConfinedProcess | None = None
        self.born = trio.Event()
        """Set, and replaced by a new event, whenever a process becomes ready."""

    def children(self) -> tuple[Child, ...]:
        # ``from_start=False``: a port that is taken at the start is a mistake of the settings, and ends the node.
        return (Child("flight", self.run, Restart(from_start=False)),)

    async def run(self, life: Life) -> None:
        """Runs until stopped.

        Raises Environment when it cannot listen, or without SQL; Refused if no sandbox is strong enough.
        """
        need_sql()
        tls = None
        if self._settings.certificate:
            tls = tls_context(self._settings.certificate, self._settings.key, "flight.certificate", ("h2",))
        with _folder() as place, _listening(self._settings) as listeners:
            scheme = "grpc" if tls is None else "grpc+tls"
            self.urls = tuple(_url(scheme, listener) for listener in listeners)
            async with trio.open_nursery() as nursery:
                listens, serves = trio.Event(), trio.Event()
                nursery.start_soon(self._answer, place, listens)
                await listens.wait()
                nursery.start_soon(self._keep, place, serves)
                await serves.wait()
                relay = Relay(place / SERVED, self._settings.connections, tls, self._logger)
                nursery.start_soon(relay.serve, [trio.SocketListener(trio.socket.from_stdlib_socket(listener))
                                                 for listener in listeners])  # fmt: skip
                life.ready()
                await life.stopping.wait()
                nursery.cancel_scope.cancel()
            self.urls = ()

    async def _answer(self, place: Path, begun: trio.Event) -> None:
        """Answers the process's requests."""

        @contextmanager
        def respond(_: trio.SocketStream) -> Iterator[ConnectionHandler]:
            yield ConnectionHandler(self._backend)

        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(place / ASKED))
            listener.listen()
            begun.set()
            await HttpServer("flight", [listener], respond, self._logger, Limits()).run(Life())

    async def _keep(self, place: Path, begun: trio.Event) -> None:
        """Keeps a process running: starts another one whenever one has ended."""
        choice, failures = await self._isolate(), 0
        while True:
            (place / SERVED).unlink(missing_ok=True)
            began = trio.current_time()
            process = self.process = start(choice.sandbox, _job(choice, place, self._version), choice.groups)
            try:
                is_ready = await _is_ready(process)
                if not is_ready:
                    process.kill()
                if not is_ready and not begun.is_set():
                    raise EngineLost(f"Flight SQL does not start: {await _last_lines(process)}", rule="flight-process")
                begun.set()
                if is_ready:
                    self.born.set()
                    self.born = trio.Event()
                said = await _last_lines(process)
                self._logger.error("the process of Flight SQL ended", said=said)
            finally:
                with trio.CancelScope(shield=True):
                    await process.stop(0.0)
            failures = 1 if trio.current_time() - began > AGAIN.most else failures + 1
            await trio.sleep(AGAIN.whole(failures))


def _job(choice: SandboxChoice, place: Path, version: str) -> Job:
    mount = Mount(place, _INSIDE, writable=True)
    seen = choice.sandbox.path_inside(mount)
    return Job(
        argv=(choice.sandbox.python, "-P", "-m", "engines.flight", "--place", str(seen), "--version", version),
        env={"PATH": "/usr/bin:/bin", "HOME": str(seen), "LANG": "C.UTF-8", "TZ": "UTC"},
        mounts=(mount,),
        memory=MEMORY,
        total=MEMORY,
        processes=PROCESSES,
    )


async def _is_ready(process: ConfinedProcess) -> bool:
    with trio.move_on_after(START_SECONDS):
        return await process.stdout.receive_some(len(READY)) == READY
    return False


async def _last_lines(process: ConfinedProcess) -> str:
    """Waits until the process closes its standard error. Returns the last line."""
    output = b""
    while piece := await process.stderr.receive_some(1 << 16):
        output = (output + piece)[-_LAST_WORDS:]
    lines = output.decode("utf-8", "replace").strip().splitlines()
    return lines[-1][:300] if lines else "it said nothing"


@contextmanager
def _folder() -> Iterator[Path]:
    """Makes a folder for sockets, with a short path even if the state directory's path is long."""
    place = Path(tempfile.mkdtemp(prefix="odfd-flight-"))
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


@contextmanager
def _listening(declared: Flight) -> Iterator[list[socket.socket]]:
    made: list[socket.socket] = []
    try:
        for address in declared.listen:
            host, _, port = address.replace("[", "").replace("]", "").rpartition(":")
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            try:
                made.append(socket.create_server((host, int(port)), family=family))
            except OSError as error:
                raise Environment(
                    f"cannot serve Flight at {host} port {port}: {error.strerror or error}", rule="flight-listen",
                    hint="another program may have the port: choose another in flight.listen, or 0 for any",
                ) from error  # fmt: skip
            made[-1].setblocking(False)
        yield made
    finally:
        for listener in made:
            listener.close()


def _url(scheme: str, listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"

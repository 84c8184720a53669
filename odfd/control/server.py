"""The control server: accepts on the unix socket, asks the kernel who calls, and serves or refuses them.

A child of the daemon's tree. It decides nothing but who may speak; what is said is the application's matter.
"""

from __future__ import annotations

import errno
import json
import socket
from typing import Final

import trio

from chain.errors import Refused
from odfd.control.credentials import Caller, Gate, caller_of
from odfd.control.http import Application, Connection, Limits, Message, Receive, Send
from odfd.errors import PROBLEM_JSON, to_problem
from odfd.kit.supervision import Journal, Life

CONNECTIONS: Final = 256
"""Served at once; more wait in the kernel's backlog."""
DRAIN_SECONDS: Final = 2.0
"""For answers under way when the daemon stops; followers of events are cut."""
FULL_PAUSE_SECONDS: Final = 0.1
"""After the system ran out of file descriptors or memory for one more connection."""
_FULL: Final = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS}
_ABORTED: Final = {errno.ECONNABORTED, errno.EPERM, errno.EPROTO}


class ControlServer:
    """Serve ``application`` to those whom ``gate`` admits; ``listener`` is a listening AF_UNIX socket, kept open."""

    def __init__(
        self,
        listener: socket.socket,
        application: Application,
        gate: Gate,
        journal: Journal,
        limits: Limits | None = None,
    ) -> None:
        self._listener, self._application, self._gate, self._journal = listener, application, gate, journal
        self._limits = limits or Limits()
        self._slots = trio.Semaphore(CONNECTIONS)
        self._busy = 0
        self._idle = trio.Event()

    async def run(self, life: Life) -> None:
        self._listener.setblocking(False)
        async with trio.open_nursery() as connections:
            with trio.socket.from_stdlib_socket(self._listener.dup()) as acceptor:
                async with trio.open_nursery() as accepting:
                    accepting.start_soon(self._accept, acceptor, connections)
                    life.ready()
                    await life.stopping.wait()
                    accepting.cancel_scope.cancel()
            with trio.move_on_after(DRAIN_SECONDS):
                while self._busy:
                    self._idle = trio.Event()
                    await self._idle.wait()
            connections.cancel_scope.cancel()

    async def _accept(self, acceptor: trio.socket.SocketType, connections: trio.Nursery) -> None:
        while True:
            await self._slots.acquire()
            try:
                connection, _ = await acceptor.accept()
            except OSError as error:
                self._slots.release()
                if error.errno in _FULL:
                    self._journal.error("no room for a connection", error=str(error))
                    await trio.sleep(FULL_PAUSE_SECONDS)
                elif error.errno not in _ABORTED:
                    raise
            else:
                connections.start_soon(self._serve, trio.SocketStream(connection))

    async def _serve(self, stream: trio.SocketStream) -> None:
        try:
            async with stream:
                await self._converse(stream)
        except Exception as error:  # noqa: BLE001  a broken conversation must not end the others
            self._journal.error("control connection failed", exc_info=error)
        finally:
            self._slots.release()

    async def _converse(self, stream: trio.SocketStream) -> None:
        caller = caller_of(stream.socket)  # type: ignore[arg-type]
        if not self._gate.admits(caller):
            self._journal.error("control refused", uid=caller.uid, gid=caller.gid, pid=caller.pid)
            await Connection(stream, _refuse(caller), self._limits, {}).serve()
            return
        await Connection(stream, self._counted, self._limits, {"odfd.caller": caller}).serve()

    async def _counted(self, scope: Message, receive: Receive, send: Send) -> None:
        self._busy += 1
        try:
            await self._application(scope, receive, send)
        finally:
            self._busy -= 1
            if not self._busy:
                self._idle.set()


def _refuse(caller: Caller) -> Application:
    fault = Refused(
        f"user {caller.uid} may not speak to this daemon",
        rule="control-access",
        hint="root, the daemon's own user and members of the group in [control] group may; ask to be made a member",
    )
    body = json.dumps(to_problem(fault)).encode()
    headers = [
        (b"content-type", PROBLEM_JSON.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]

    async def refuse(_scope: Message, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 403, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return refuse

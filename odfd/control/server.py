"""Runs the control server: accepts connections on the unix socket, checks the caller, and serves or refuses.

A child of the daemon's tree. It decides nothing but who may speak; what is said is the application's matter.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import trio

from chain.errors import Refused
from odfd.control.credentials import Caller, Gate, caller_of
from odfd.errors import PROBLEM_JSON, to_problem
from odfd.runtime.http import Application, Limits, Message, Receive, Send
from odfd.runtime.serving import HttpServer, Response
from odfd.runtime.supervision import Life, Logger


class ControlServer:
    """Serve ``application`` to those whom ``gate`` admits; ``listener`` is a listening AF_UNIX socket, kept open."""

    def __init__(
        self,
        listener: socket.socket,
        application: Application,
        gate: Gate,
        logger: Logger,
        limits: Limits | None = None,
    ) -> None:
        self._application, self._gate, self._logger = application, gate, logger
        self.server = HttpServer("control", [listener], self._respond, logger, limits or Limits())

    async def run(self, life: Life) -> None:
        await self.server.run(life)

    @contextmanager
    def _respond(self, stream: trio.SocketStream) -> Iterator[Response]:
        caller = caller_of(stream.socket)  # type: ignore[arg-type]
        if self._gate.admits(caller):
            yield Response(self._application, {"odfd.caller": caller})
        else:
            self._logger.error("control refused", uid=caller.uid, gid=caller.gid, pid=caller.pid)
            yield Response(_refuse(caller))


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

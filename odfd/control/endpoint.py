"""Creates the control socket with the right mode, and serves it to the users whom its gate admits.

The gate decides by the user and groups that the kernel reports for the caller. A socket left by a dead daemon is
replaced. The application handles the requests.
"""

from __future__ import annotations

import contextlib
import errno
import grp
import json
import os
import socket
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

from chain.errors import Environment, Invalid, Refused
from odfd.errors import PROBLEM_JSON, to_problem
from odfd.runtime.http import Application, Limits, Message, Receive, Send
from odfd.runtime.http_server import ConnectionHandler, HttpServer
from odfd.runtime.supervision import Life, Logger

CALLER: Final = "odfd.caller"
"""Key of a request's scope: the caller at the control socket."""
ACT_AS: Final = "odfd-account"
"""Header of a request that names the account to act as."""
OWNED: Final = "odfd.owned"
"""Key of a request's scope: whether it is part of a session that the node's owner opened."""
GRANT: Final = "odfd.grant"
"""Key of a request's scope: the record of its token, if it came over TCP."""
_SO_PEERGROUPS: Final = 59
_MAX_GROUPS: Final = 65536
"""Most groups of a process, NGROUPS_MAX of Linux."""


@dataclass(frozen=True, slots=True)
class Caller:
    pid: int
    uid: int
    gid: int
    groups: frozenset[int] = frozenset()
    """Supplementary groups at the time of connecting."""


@dataclass(frozen=True, slots=True)
class Gate:
    """The rule of access: ``own_uid`` and root always, and members of group ``gid``; ``None``: of no group."""

    own_uid: int
    gid: int | None = None

    def admits(self, caller: Caller) -> bool:
        if caller.uid in (0, self.own_uid):
            return True
        return self.gid is not None and (caller.gid == self.gid or self.gid in caller.groups)


def caller_of(connection: socket.socket) -> Caller:
    """Returns the peer of a connected AF_UNIX stream socket. Raises OSError when the kernel does not know it."""
    pid, uid, gid = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return Caller(pid, uid, gid, _groups(connection))


def _groups(connection: socket.socket) -> frozenset[int]:
    room = 4 * 64
    while True:
        try:
            raw = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, room)
        except OSError:
            # ERANGE: more groups than room; anything else: a kernel before 4.13, where no supplementary groups are
            # known.
            if room >= 4 * _MAX_GROUPS:
                return frozenset()
            room *= 16
            continue
        return frozenset(struct.unpack(f"{len(raw) // 4}I", raw))


def group_id(name: str) -> int | None:
    """Returns the id of a group; None for ``""``. Raises Environment when there is no such group."""
    if not name:
        return None
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError as error:
        raise Environment(
            f"there is no group {name!r} on this machine",
            rule="control.group",
            hint=f"make it (groupadd --system {name}), or leave [control] group empty: then only you and root may",
        ) from error


MAX_PATH: Final = 107
"""Most bytes of ``sun_path`` on Linux, without the final zero."""
BACKLOG: Final = 128


def check_path(path: Path) -> None:
    """Raises Invalid for a path that is too long for the address of a socket."""
    size = len(os.fsencode(path))
    if size > MAX_PATH:
        raise Invalid(
            f"the socket path has {size} bytes, and the kernel takes at most {MAX_PATH}: {path}",
            rule="socket-path-length",
            hint="name a shorter one with --socket, such as /tmp/odfd.sock or one under $XDG_RUNTIME_DIR",
        )


def bind(path: Path, gid: int | None = None) -> socket.socket:
    """Makes a listening socket at ``path``, for the owner (0600) or also for a group (0660).

    A socket on which nobody listens is replaced. Raises Invalid (path too long) and Environment (a daemon answers
    there, something else is there, or the folder is not writable).
    """
    check_path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o755 if gid is not None else 0o700)
        _clear(path)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with contextlib.ExitStack() as undo:
            undo.callback(listener.close)
            # The file has its mode from the first moment, by which the kernel judges who connects (unix(7)).
            before = os.umask(0o177)
            try:
                listener.bind(os.fspath(path))
            finally:
                os.umask(before)
            if gid is not None:
                # Before the mode: for a moment members of the process's own group could connect.
                os.chown(path, -1, gid)
                path.chmod(0o660)
            listener.listen(BACKLOG)
            undo.pop_all()
    except OSError as error:
        blocked = isinstance(error, FileExistsError | NotADirectoryError)
        why = "a part of the path is a file, not a folder" if blocked else error.strerror or error
        mend = "" if blocked else "correct the folder's permissions, or "
        raise Environment(
            f"cannot listen on {path}: {why}",
            rule="control-socket",
            hint=f"{mend}name another: --state for all of the node, --socket for this alone",
        ) from error
    return listener


def release(listener: socket.socket, path: Path) -> None:
    """Closes the socket, and removes its file unless a successor has replaced it."""
    ours = None
    with contextlib.suppress(OSError):
        ours = listener.getsockname()
    listener.close()
    if ours == os.fspath(path) and not _answers(path):
        with contextlib.suppress(OSError):
            path.unlink()


def _clear(path: Path) -> None:
    try:
        kind = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(kind):
        raise Environment(
            f"{path} is there and is not a socket",
            rule="control-socket",
            hint="move it away, or name another path with --socket",
        )
    if _answers(path):
        raise Environment(
            f"another daemon listens on {path}",
            rule="control-socket",
            hint=f"odfctl --socket {path} status shows it; stop it, or give this one its own --state and --socket",
        )
    path.unlink(missing_ok=True)


def _answers(path: Path) -> bool:
    """Whether a process listens at ``path``. A full backlog (EAGAIN) counts as one; a refusal or no socket as none."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        code = probe.connect_ex(os.fspath(path))
    return code not in (errno.ECONNREFUSED, errno.ENOENT)


class ControlServer:
    """Serves ``application`` to callers that ``gate`` admits; ``listener`` is a listening AF_UNIX socket, kept open."""

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
    def _respond(self, stream: trio.SocketStream) -> Iterator[ConnectionHandler]:
        caller = caller_of(stream.socket)  # type: ignore[arg-type]
        if self._gate.admits(caller):
            yield ConnectionHandler(self._application, {CALLER: caller})
        else:
            self._logger.error("control refused", uid=caller.uid, gid=caller.gid, pid=caller.pid)
            yield ConnectionHandler(_refuse(caller))


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

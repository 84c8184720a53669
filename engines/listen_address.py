"""Parses the address at which an engine listens (``unix:PATH``, ``HOST:PORT`` or ``:PORT``), and checks that it is
free.

An engine obeys whoever reaches it, with access to all files of its user, so an address without a host means this
machine only. The check holds nothing until serving begins: gRPC binds the address again, and its result counts.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import socket
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from chain.errors import Environment, Invalid

LOOPBACK: Final = "127.0.0.1"
DEFAULT: Final = f"{LOOPBACK}:5544"
READY: Final = "odf-engine ready "
"""First words of the one line that an engine process prints on its standard output; the address follows."""
SESSION: Final = "odf-engine session "
"""First words of lines that an engine process prints when its session changes; its state follows (``SESSION_STATES``).
An engine that prints none with its ready line has all that it needs from the start."""
MAX_SOCKET_PATH: Final = 107
"""Most bytes of a unix socket's path (``sun_path`` of Linux less its terminating zero)."""
_UNIX: Final = "unix:"
_ADDRESS: Final = re.compile(r"(?P<host>\[[0-9a-fA-F:.%\w]+\]|[^\[\]:/\s]*):(?P<port>\d{1,5})\Z")
_FORMS: Final = "write HOST:PORT, :PORT for this machine alone, or unix:PATH"


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """The address of an engine: of a unix socket or of TCP."""

    path: Path | None
    """Path of a unix socket; ``None`` for TCP."""
    host: str = ""
    port: int = 0

    def __str__(self) -> str:
        return f"{_UNIX}{self.path}" if self.path is not None else f"{self.host}:{self.port}"

    @property
    def is_local(self) -> bool:
        """Whether only programs of this machine can reach it."""
        if self.path is not None or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return False


def parse_address(text: str) -> EngineAddress:
    """Parses an address. Raises Invalid for a malformed text, Environment for too long a socket's path. Pure."""
    if text.startswith(_UNIX):
        path = text.removeprefix(_UNIX)
        if not path:
            raise Invalid(f"no address to listen at: {text!r}", rule="engine-listen", hint=_FORMS)
        if len(path.encode()) > MAX_SOCKET_PATH:
            raise Environment(
                f"the path of the engine's socket is longer than {MAX_SOCKET_PATH} bytes: {text}",
                rule="socket-path",
                hint="choose a shorter runtime directory",
            )
        return EngineAddress(Path(path))
    found = _ADDRESS.match(text)
    if found is None or int(found["port"]) > 65535:
        raise Invalid(f"no address to listen at: {text!r}", rule="engine-listen", hint=_FORMS)
    return EngineAddress(None, found["host"] or LOOPBACK, int(found["port"]))


def check_free(address: EngineAddress) -> None:
    """Checks that the address can be bound. Raises Environment if something listens there already, or nothing can."""
    if address.path is not None:
        _check_socket(address.path)
        return
    host = address.host.strip("[]")
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, address.port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(place)
    except OSError as error:
        raise cannot_listen(address, error.errno == errno.EADDRINUSE, error.strerror or str(error)) from error


def cannot_listen(address: EngineAddress, in_use: bool, why: str) -> Environment:
    """Makes the error for an address that this process cannot bind."""
    hint = (
        "another engine may be running there: stop it, or name another address with --listen"
        if in_use
        else "name an address of this machine with --listen"
    )
    return Environment(f"the engine cannot listen at {address}: {why}", rule="engine-listen", hint=hint)


def _check_socket(path: Path) -> None:
    """Removes a socket without a listener; refuses to remove anything else."""
    address = EngineAddress(path)
    if not path.parent.is_dir():
        raise cannot_listen(address, False, f"{path.parent} is no directory")
    if not os.path.lexists(path):
        return
    if not stat.S_ISSOCK(path.lstat().st_mode):
        raise cannot_listen(address, False, "there is something else")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as trial:
        try:
            trial.connect(str(path))
        except ConnectionRefusedError:
            return
        except OSError as error:
            raise cannot_listen(address, False, error.strerror or str(error)) from error
    raise cannot_listen(address, True, "address already in use")

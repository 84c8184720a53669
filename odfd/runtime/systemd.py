"""Talks to systemd: sends readiness notes, takes inherited sockets, and refuses folders that only its services see.

Protocols: sd_notify(3), sd_listen_fds(3). Without a service manager no note is sent, silently, and there are no
inherited sockets. Nothing here raises when the manager is gone: an unread note is no reason to fail. A service may have
a /tmp of its own (``PrivateTmp=``) that is deleted when it stops, and no access to homes (``ProtectHome=``): files
written there would be lost, and files named there are not found.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path, PurePosixPath
from typing import Final

from chain.errors import Environment, Refused

_FIRST_FD: Final = 3
"""The first inherited descriptor, SD_LISTEN_FDS_START."""


class Notifier:
    """Sends notes to the service manager named in ``NOTIFY_SOCKET``."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._address = environ.get("NOTIFY_SOCKET", "")
        if self._address.startswith("@"):
            # An abstract socket, whose name begins with a NUL (sd_notify(3)).
            self._address = "\0" + self._address[1:]
        self.watchdog_seconds = _watchdog_seconds(environ)
        """The longest interval of ``alive`` for the manager; 0: never."""

    def ready(self, status: str = "") -> None:
        self._send("READY=1", status)

    def reloading(self, monotonic_ns: int) -> None:
        # Type=notify-reload takes no reload without the time at which it began (sd_notify(3)).
        self._send("RELOADING=1", f"MONOTONIC_USEC={monotonic_ns // 1000}")

    def stopping(self, status: str = "") -> None:
        self._send("STOPPING=1", status)

    def alive(self) -> None:
        self._send("WATCHDOG=1")

    def status(self, text: str) -> None:
        self._send("", text)

    def _send(self, state: str, extra: str = "") -> None:
        if not self._address:
            return
        if extra and "=" not in extra.split(" ")[0]:
            extra = "STATUS=" + extra.replace("\n", " ")
        note = "\n".join(line for line in (state, extra) if line)
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            # A manager that does not read its socket holds up no event loop.
            sender.setblocking(False)
            sender.sendto(note.encode(), self._address)


def _watchdog_seconds(environ: Mapping[str, str]) -> float:
    wanted, pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
    if not wanted.isascii() or not wanted.isdigit() or (pid and pid != str(os.getpid())):
        return 0.0
    return int(wanted) / 1_000_000


def take_sockets(environ: MutableMapping[str, str]) -> dict[str, socket.socket]:
    """Returns inherited listening sockets by their names in the unit, ``""`` for a nameless one.

    Removes the variables from ``environ``, lest a child process takes the sockets for its own.
    """
    count, pid = environ.pop("LISTEN_FDS", ""), environ.pop("LISTEN_PID", "")
    names = environ.pop("LISTEN_FDNAMES", "").split(":")
    # Variables are inherited: sockets of a parent are not ours (sd_listen_fds(3)).
    if not (count.isascii() and count.isdigit()) or pid != str(os.getpid()):
        return {}
    taken: dict[str, socket.socket] = {}
    for index in range(int(count)):
        descriptor = _FIRST_FD + index
        os.set_inheritable(descriptor, False)
        taken[names[index] if index < len(names) else ""] = socket.socket(fileno=descriptor)
    return taken


MOUNTS: Final = Path("/proc/self/mountinfo")
_OWN_TMP: Final = re.compile(r"(^|/)systemd-private-[^/]*/tmp$")
"""Matches the root of the mount that systemd makes for ``PrivateTmp=``, within its file system."""
_HINT: Final = (
    "name a folder that the daemon may use, like one below /srv; under systemd, add it to ReadWritePaths= by systemctl "
    "edit odfd (odfctl docs backup)"
)


def check_shared(folder: Path, mounts: str | None = None) -> None:
    """Raises Refused for a folder in a /tmp that only this daemon sees, Environment for one that it may not open.

    ``mounts``: the mounts of this process, as ``/proc/self/mountinfo`` lists them.
    """
    listed = _mounts() if mounts is None else mounts
    for own in private_folders(listed):
        if PurePosixPath(folder).is_relative_to(own):
            raise Refused(
                f"{folder} lies in a {own} that only the daemon sees, and systemd deletes it when the daemon stops",
                rule="private-folder",
                hint=_HINT,
            )
    try:
        folder.stat()
    except PermissionError as error:
        raise Environment(f"the daemon may not open {folder}", rule="disk", hint=_HINT) from error
    except OSError:
        return  # its user reports the error


def private_folders(mounts: str) -> Iterator[str]:
    """Yields the folders that systemd made for this service alone."""
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) > 4 and _OWN_TMP.search(fields[3]):
            yield fields[4]


def _mounts() -> str:
    try:
        return MOUNTS.read_text(errors="replace")
    except OSError:
        return ""

"""Decides who may use the control socket, by the user and groups that the kernel reports for the caller.

Allowed are root, the daemon's own user, and members of one configured group. The pid is for the log only: by the time
it is read it may be somebody else's.
"""

from __future__ import annotations

import grp
import socket
import struct
from dataclasses import dataclass
from typing import Final

from chain.errors import Environment

_SO_PEERGROUPS: Final = 59
_MAX_GROUPS: Final = 65536
"""NGROUPS_MAX of Linux."""


@dataclass(frozen=True, slots=True)
class Caller:
    pid: int
    uid: int
    gid: int
    groups: frozenset[int] = frozenset()
    """Supplementary groups at the time of connecting."""


@dataclass(frozen=True, slots=True)
class Gate:
    """The rule: ``own_uid`` and root always, then whoever has group ``gid``."""

    own_uid: int
    gid: int | None = None

    def admits(self, caller: Caller) -> bool:
        if caller.uid in (0, self.own_uid):
            return True
        return self.gid is not None and (caller.gid == self.gid or self.gid in caller.groups)


def caller_of(connection: socket.socket) -> Caller:
    """Of a connected AF_UNIX stream socket. Raises OSError when the kernel does not know."""
    pid, uid, gid = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return Caller(pid, uid, gid, _groups(connection))


def _groups(connection: socket.socket) -> frozenset[int]:
    room = 4 * 64
    while True:
        try:
            raw = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, room)
        except OSError:
            # ERANGE: more groups than room; anything else: a kernel before 4.13, where nobody has supplementary ones.
            if room >= 4 * _MAX_GROUPS:
                return frozenset()
            room *= 16
            continue
        return frozenset(struct.unpack(f"{len(raw) // 4}I", raw))


def group_id(name: str) -> int | None:
    """``""`` is nobody. Raises Environment when there is no such group."""
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

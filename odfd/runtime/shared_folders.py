"""Refuses folders that the daemon sees differently from the person who names them.

A service of systemd may have a /tmp of its own (``PrivateTmp=``) that is deleted when the service stops, and no access
to homes (``ProtectHome=``): files written there would be lost, and files named there are not found.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

from chain.errors import Environment, Refused

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

"""Level ``host``: bubblewrap over the host's runtime: no network, no host processes, given folders, filtered calls.

The command line is a pure function of the job; whether it holds on this machine is for ``probe`` to find out (nested
containers and AppArmor can refuse any part of it). As root the inner user is still root of the host for files that
are mounted, so a node should run as a plain user.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Final

from engines.sandbox.base import Command, Job, Level, Mount
from engines.sandbox.runtime import WRITTEN, HostRuntime
from engines.sandbox.seccomp import assemble, engine_filter

TMP_BYTES: Final = 256 << 20
"""Of /tmp in memory; what is bigger belongs into a folder of the job."""
RUN_BYTES: Final = 16 << 20
_NAMESPACES: Final = ("user", "pid", "net", "ipc", "uts")
"""``--unshare-all`` would only try the user namespace."""


class Bubblewrap:
    """One bubblewrap binary and one runtime."""

    level = Level.HOST

    def __init__(self, binary: str, runtime: HostRuntime, machine: str = platform.machine()) -> None:
        self._binary = binary
        self._runtime = runtime
        self._filter = assemble(engine_filter(machine))

    def data(self) -> Sequence[bytes]:
        return (self._filter, *WRITTEN.values())

    def seen(self, mount: Mount, /) -> PurePosixPath:
        return mount.target

    def command(self, job: Job, files: Sequence[int], /) -> Command:
        call_filter, *written = files
        argv = (
            self._binary,
            *(f"--unshare-{name}" for name in _NAMESPACES),
            *("--unshare-cgroup-try", "--uid", "1000", "--gid", "1000", "--cap-drop", "ALL"),
            *("--die-with-parent", "--new-session", "--hostname", "localhost", "--clearenv"),
            *(word for name, value in job.env.items() for word in ("--setenv", name, value)),
            *("--proc", "/proc", "--dev", "/dev"),
            *("--size", str(TMP_BYTES), "--tmpfs", "/tmp"),  # noqa: S108  # inside, and nobody else's
            *("--size", str(RUN_BYTES), "--tmpfs", "/run"),
            *(word for text, place in self._runtime.links for word in ("--symlink", text, place)),
            *(word for mount in self._runtime.mounts for word in _bind(mount)),
            *_write(written),
            *(word for mount in job.mounts for word in _bind(mount)),
            *("--remount-ro", "/", "--chdir", "/tmp", "--seccomp", str(call_filter)),  # noqa: S108
            *job.argv,
        )
        return Command(argv, {"PATH": "/usr/bin:/bin"})


def _bind(mount: Mount) -> tuple[str, str, str]:
    option = "--bind" if mount.writable else "--ro-bind"
    return (f"{option}-try" if mount.optional else option), str(mount.source), str(mount.target)


def _write(files: Sequence[int]) -> Iterator[str]:
    for place, file in zip(WRITTEN, files, strict=True):
        yield from ("--perms", "0444", "--ro-bind-data", str(file), place)

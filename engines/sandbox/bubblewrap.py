"""Runs jobs in Bubblewrap over the host's runtime or an image: no network, no host processes, only given folders.

The command line is a pure function of the job; ``probe`` finds out whether it isolates on this machine (nested
containers and AppArmor can refuse any part of it). If the node runs as root, the inner user is still the host's root
for mounted files, so a node should run as a plain user.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final

from config.paths import code_environment
from engines.image.installed import ENVIRONMENT, JAVA_HOME, PYTHON, Image
from engines.image.oci import WRITTEN
from engines.sandbox.base import Job, Mount, SandboxCommand, SandboxLevel, tether_command
from engines.sandbox.seccomp import assemble, engine_filter

TMP_BYTES: Final = 256 << 20
"""Most bytes of /tmp, which is in memory; larger files belong into a folder of the job."""
RUN_BYTES: Final = 16 << 20
ROOT: Final = PurePosixPath("/")
GIVEN: Final = PurePosixPath("/odf")
"""Directory with a job's folders; an image has it empty."""
_NAMESPACES: Final = ("user", "pid", "net", "ipc", "uts")
"""Namespaces requested by name, since ``--unshare-all`` would only try the user namespace."""
CODE: Final = ("chain", "config", "engines")
"""Packages of ours that run inside."""
FROM_ROOT: Final = ("bin", "sbin", "lib", "lib32", "lib64")
"""Folders of the host's root beside /usr; on a merged-/usr system they are links into it."""
FROM_ETC: Final = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "localtime", "mime.types")
_JAVA_PARTS: Final = ("conf", "lib")
"""Folders of a Java home in which Debian has links to /etc/java-*; the thousand links in ``legal`` do not matter."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """The contents of a sandbox: read-only mounts, links as (text, path), files as path and content.

    Everything appears under its own path, so that no path in an interpreter or a JVM has to change. Determined anew at
    each start (an upgrade may have moved things); never includes a home directory or the node's state.
    """

    level: SandboxLevel
    python: str
    mounts: tuple[Mount, ...]
    links: tuple[tuple[str, str], ...] = ()
    written: Mapping[str, bytes] = field(default_factory=dict)
    java_home: Path | None = None
    """Path inside of its own Java; ``None``: it has none."""
    environment: Mapping[str, str] = field(default_factory=dict)


def host_runtime(java_homes: Iterable[Path]) -> Runtime:
    """Describes the runtime of the current interpreter, plus the given Java homes."""
    links = tuple((str(Path("/", name).readlink()), f"/{name}") for name in FROM_ROOT if Path("/", name).is_symlink())
    folders = [Path("/usr"), *(Path("/", name) for name in FROM_ROOT if not Path("/", name).is_symlink())]
    folders += [Path("/etc", name) for name in FROM_ETC]
    folders += [Path(sys.base_prefix), Path(sys.prefix), Path(sys.executable).resolve().parent.parent]
    folders += list(_code())
    for home in java_homes:
        folders += [home.resolve(), *_outside(home.resolve())]
    mounts = tuple(Mount(path, PurePosixPath(path), optional=True) for path in _outermost(folders))
    return Runtime(SandboxLevel.HOST, sys.executable, mounts, links, WRITTEN, environment=code_environment())


def image_runtime(image: Image) -> Runtime:
    """Describes an unpacked image that replaces the host's files."""
    whole = Mount(image.rootfs, PurePosixPath("/"))
    return Runtime(SandboxLevel.IMAGE, PYTHON, (whole,), java_home=Path(JAVA_HOME), environment=ENVIRONMENT)


def _code() -> Iterator[Path]:
    for name in CODE:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None:
            yield Path(spec.origin).parent


def _outside(home: Path) -> Iterator[Path]:
    """Yields files outside of a Java home to which it has links."""
    for part in _JAVA_PARTS:
        for folder, names, files in os.walk(home / part):
            for name in (*names, *files):
                path = Path(folder, name)
                if path.is_symlink() and not path.resolve().is_relative_to(home):
                    yield path.resolve()


def _outermost(folders: Iterable[Path]) -> list[Path]:
    """Drops folders inside other ones; returns parents first, so that later mounts do not hide earlier ones."""
    kept: dict[Path, None] = {}
    for path in sorted(set(folders), key=lambda each: (len(each.parts), each)):
        if kept.keys().isdisjoint(path.parents):
            kept[path] = None
    return list(kept)


class Bubblewrap:
    """Levels ``host`` and ``image``: runs jobs in bubblewrap over a runtime."""

    def __init__(self, binary: str, runtime: Runtime, machine: str = platform.machine()) -> None:
        self._binary = binary
        self._runtime = runtime
        self.call_filter: Final = assemble(engine_filter(machine))
        """The program that filters system calls."""

    @property
    def level(self) -> SandboxLevel:
        return self._runtime.level

    @property
    def python(self) -> str:
        return self._runtime.python

    @property
    def java_home(self) -> Path | None:
        return self._runtime.java_home

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables of every job inside."""
        return self._runtime.environment

    @property
    def counts_processes(self) -> bool:
        """Whether a limit of processes that is set inside applies to the sandbox alone."""
        return counts_by_namespace(platform.release())

    @property
    def bounds(self) -> Set[str]:
        # A limit of processes never applies to the host's root.
        counted = os.geteuid() != 0 and self.counts_processes
        return frozenset({"exceed-processes"} if counted else ())

    def data(self) -> Sequence[bytes]:
        return (self.call_filter, *self._runtime.written.values())

    def path_inside(self, mount: Mount, /) -> PurePosixPath:
        return mount.target

    def command(self, job: Job, files: Sequence[int], /) -> SandboxCommand:
        call_filter, *written = files
        runtime = self._runtime
        whole = next((mount for mount in runtime.mounts if mount.target == ROOT), None)
        counted = job.processes is not None and self.counts_processes
        tether = tether_command(runtime.python, job.processes) if counted else ()
        argv = (
            self._binary,
            *(f"--unshare-{name}" for name in _NAMESPACES),
            *("--unshare-cgroup-try", "--uid", "1000", "--gid", "1000", "--cap-drop", "ALL"),
            # In its terminal session a job could push input into the node's terminal (TIOCSTI, CVE-2017-5226).
            *("--die-with-parent", "--new-session", "--hostname", "localhost", "--clearenv"),
            *(word for item in {**job.env, **runtime.environment}.items() for word in ("--setenv", *item)),
            *(_bind(whole) if whole is not None else ()),
            *("--proc", "/proc", "--dev", "/dev"),
            # A tmpfs without a size may take half of the machine's memory, and counts for no process.
            *("--size", str(TMP_BYTES), "--tmpfs", "/tmp"),  # noqa: S108  # inside, and nobody else's
            *("--size", str(RUN_BYTES), "--tmpfs", "/run"),
            *(("--size", str(RUN_BYTES), "--tmpfs", str(GIVEN)) if whole is not None else ()),
            *(word for text, place in runtime.links for word in ("--symlink", text, place)),
            *(word for mount in runtime.mounts if mount is not whole for word in _bind(mount)),
            *_write(runtime.written, written),
            *(word for mount in job.mounts for word in _bind(mount)),
            *("--remount-ro", str(GIVEN if whole is not None else ROOT)),
            *("--chdir", "/tmp", "--seccomp", str(call_filter)),  # noqa: S108
            *(*tether, *job.argv),
        )
        return SandboxCommand(argv, {"PATH": "/usr/bin:/bin"})


def counts_by_namespace(release: str) -> bool:
    """Whether this Linux counts processes by user namespace, so that a limit set inside applies to the
    sandbox alone."""
    found = re.match(r"(\d+)\.(\d+)", release)
    return found is not None and (int(found[1]), int(found[2])) >= (5, 14)


def _bind(mount: Mount) -> tuple[str, str, str]:
    option = "--bind" if mount.writable else "--ro-bind"
    return (f"{option}-try" if mount.optional else option), str(mount.source), str(mount.target)


def _write(places: Iterable[str], files: Sequence[int]) -> Iterator[str]:
    for place, file in zip(places, files, strict=True):
        yield from ("--perms", "0444", "--ro-bind-data", str(file), place)

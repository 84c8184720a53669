"""Declares the port of a sandbox: a job with the folders it may see, its command line and its paths.

Has values, the port, and its simplest level. ``process`` starts jobs, ``probe`` tests levels. Every level can run every
job; they differ in what else the job could reach.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final, Protocol

from config.paths import code_environment

TETHER: Final = Path(__file__).with_name("tether.py")


def tether_command(python: str, processes: int | None, *, hold: bool = False) -> tuple[str, ...]:
    """Returns the prefix of a command that runs inside: see ``tether``."""
    bound = "-" if processes is None else str(processes)
    return (python, "-I", "-S", "-c", TETHER.read_text(encoding="utf-8"), bound, "hold" if hold else "-")


class SandboxLevel(enum.Enum):
    """The levels of isolation, strongest first."""

    CONTAINER = "container"
    """A container of an image pinned by digest, made by podman or docker."""
    IMAGE = "image"
    """Bubblewrap over the unpacked image, each file checked: no network, nothing of the host but given folders."""
    HOST = "host"
    """Bubblewrap over the host's own runtime: no network, only given folders."""
    NONE = "none"
    """A plain process of the node's user, without isolation."""

    @property
    def rank(self) -> int:
        """The strength of the level; 0 is the weakest."""
        return {"none": 0, "host": 1, "image": 2, "container": 3}[self.value]


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder of the host, ``source``, visible to the job at ``target``; read-only by default."""

    source: Path
    target: PurePosixPath
    writable: bool = False
    optional: bool = False
    """Whether to leave it out if the source does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A command to run in a sandbox, with its folders and limits."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    mounts: tuple[Mount, ...]
    """Folders of this job; the sandbox itself adds the runtime."""
    memory: int | None = None
    """Most bytes of private writable memory for each process of the job (RLIMIT_DATA). The JVM reserves far more
    addresses than it uses, so limits on the address space do not work for it."""
    total: int | None = None
    """Most bytes of memory of all processes of the job together; needs control groups."""
    processes: int | None = None
    """Most processes of the job at once, threads included, where they can be counted."""


@dataclass(frozen=True, slots=True)
class SandboxCommand:
    """The command of the host that runs a job in its sandbox."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    limited: bool = False
    """Whether the limits of the job are in ``argv``; the caller must not apply them to the tool."""
    place: Path | None = None
    """Working directory in which to start it, if that matters: podman's monitor leaves a file there
    when a job ran out of memory."""
    container: str | None = None
    """Name of the container that ``argv[0]`` makes, and that stays if the command is killed before it starts it."""


class Sandbox(Protocol):
    """One level of isolation on this host."""

    @property
    def level(self) -> SandboxLevel: ...

    @property
    def python(self) -> str:
        """Path of the interpreter inside, which can import ``engines`` and its dependencies."""

    @property
    def java_home(self) -> Path | None:
        """Path inside of the sandbox's own Java; ``None``: it has none."""

    @property
    def bounds(self) -> Set[str]:
        """Returns the bounds of ``probe.BOUNDS`` that the sandbox enforces without control groups of ours."""

    def data(self) -> Sequence[bytes]:
        """Returns contents that ``command`` needs as open files."""

    def command(self, job: Job, files: Sequence[int], /) -> SandboxCommand:
        """Builds the whole command; ``files`` are descriptors of ``data``, in order."""

    def path_inside(self, mount: Mount, /) -> PurePosixPath:
        """Returns the path at which the job sees a mount."""


class PlainProcess:
    """Level ``none``: runs as the node's own user; protects against accidents (memory, orphans), not against intent."""

    level = SandboxLevel.NONE
    java_home = None

    @property
    def python(self) -> str:
        return sys.executable

    @property
    def bounds(self) -> Set[str]:
        return frozenset()

    def data(self) -> Sequence[bytes]:
        return ()

    def command(self, job: Job, _: Sequence[int], /) -> SandboxCommand:
        return SandboxCommand(job.argv, {**code_environment(), **job.env})

    def path_inside(self, mount: Mount, /) -> PurePosixPath:
        return PurePosixPath(mount.source)

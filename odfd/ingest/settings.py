"""Defines the settings of ingestion on this machine; the daemon passes the values in."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

import msgspec
import trio

from engines.sandbox.base import SandboxLevel
from engines.sandbox.container import label_of, remove_left
from engines.sandbox.probe import SandboxChoice, choose
from odfd.ingest.local_files import LocalFiles
from odfd.ingest.templates import check_allowed, check_template
from p2p.ip import Allows
from p2p.web.client import Patience


class FormerContainers:
    """Removes containers that a killed life of the node left: once, before the first container of this life."""

    def __init__(self) -> None:
        self._lock = trio.Lock()
        self._is_done = False

    async def remove(self, staging: Path) -> int:
        """Returns the number of containers that were removed by this call. Raises Environment; the next call then
        tries again."""
        async with self._lock:
            binary = shutil.which("podman")
            if self._is_done or binary is None:
                return 0
            count = await remove_left(binary, label_of(staging))
            self._is_done = True
            return count


async def _over_the_host() -> SandboxChoice:
    """Chooses a sandbox over the host's own programs, since an engine's image does not have the commands."""
    return await choose(SandboxLevel.HOST)


class CommandSandbox:
    """Remembers which sandbox works on this machine. ``choose`` tries them, and raises Refused if none works."""

    def __init__(self, choose: Callable[[], Awaitable[SandboxChoice]] = _over_the_host) -> None:
        self._choose = choose
        self._lock = trio.Lock()
        self._choice: SandboxChoice | None = None

    async def choice(self) -> SandboxChoice:
        """Returns the sandbox, choosing it at the first call. Raises Refused; the next call then tries again."""
        async with self._lock:
            if self._choice is None:
                self._choice = await self._choose()
            return self._choice


MAX_SOURCE: Final = 64 << 30
"""Bytes of one source file after all preparation; stops an endless download or a decompression bomb."""
UNPACK_RATIO: Final = 250
PATIENCE: Final = Patience(connect=10.0, silence=60.0, span=60.0, least=60 << 10, total=4 * 3600.0)
"""Time limits of requests to web servers."""
PIPE_TIMEOUT: Final = 3600.0
"""Seconds that a Pipe step may run."""
PIPE_MEMORY: Final = 1 << 30
"""Bytes that each process of a Pipe step may use, and all together if control groups can be made."""
PipeMode: TypeAlias = Literal["sandbox", "user", "never"]
CONTAINER_MEMORY: Final = 1 << 30
"""Bytes that all processes of a container may take together."""
ContainerMode: TypeAlias = Literal["never", "offline", "network"]
CHUNK: Final = 1 << 20
_NO_VARIABLES: Final[Mapping[str, str]] = MappingProxyType({})

Check: TypeAlias = Callable[[], None]


def unstoppable() -> None:
    """Never cancels; for work without a deadline."""


class IngestSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and permissions of ingestion."""

    staging: Path
    """A directory of our own for downloads and unpacked files; files that a crash leaves here may be deleted."""
    max_source_bytes: int = MAX_SOURCE
    max_unpack_ratio: int = UNPACK_RATIO
    """How many times larger than its packed bytes an unpacked file may be."""
    max_record_bytes: int | None = None
    """Most bytes of one record of a text; ``None``: the engine's default."""
    disk_reserve: int = 0
    """Bytes left free on the disk of ``staging``."""
    patience: Patience = PATIENCE
    pipe: PipeMode = "sandbox"
    """How commands of ``prepare: Pipe`` run: without network and files, with the rights of this user, or never."""
    pipe_timeout: float = PIPE_TIMEOUT
    pipe_memory: int = PIPE_MEMORY
    container: ContainerMode = "never"
    """Whether images of ``fetch: Container`` run: never, without a network, or with one if a source requests it."""
    container_memory: int = CONTAINER_MEMORY
    sandbox: CommandSandbox = msgspec.field(default_factory=CommandSandbox)
    former: FormerContainers = msgspec.field(default_factory=FormerContainers)
    environment: Mapping[str, str] = _NO_VARIABLES
    """Environment variables of commands that run as this user, besides ``variables``."""
    variables: Mapping[str, str] = _NO_VARIABLES
    """Values for ``${{ env.NAME }}`` in URLs and headers of sources."""
    allowed: Collection[str] = ()
    """Further names that ``${{ env.NAME }}`` may use, even while they have no value."""
    settle: float = 0.0
    """Seconds that a file of this machine must have stayed unwritten before it is taken."""
    settle_closed: float = 0.0
    """The same for a file that no program has open for writing, if the system can tell."""
    may_dial: Allows | None = None
    """Decides which addresses of servers named by other nodes may be dialled; ``None``: any, through any proxy."""
    readable: LocalFiles = LocalFiles()
    """Files of this machine that sources may name."""
    base: Path | None = None
    """Folder that relative paths in a manifest start from, on this machine; ``None``: they are refused."""

    def check_variables(self, text: str) -> None:
        """Raises Invalid for a malformed variable in a text, and for one that sources may not use."""
        check_template(text)
        check_allowed(text, {*self.allowed, *self.variables})

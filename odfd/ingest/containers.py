"""Runs the image of a source in a container of podman, without input, and writes its output to a file.

A container has no rights, a read-only root, bounded memory, processes and time, and no network unless it is given one.
The image is named by digest, has to be on this machine already, and is never fetched. A container that outlives a
killed node is ended by podman's own timeout. The next life removes all of them when it starts.
"""

from __future__ import annotations

import hashlib
import math
import os
import resource
import shutil
import stat
import subprocess
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import trio

from chain.errors import Environment, Invalid, Refused
from chain.wording import plural
from engines.sandbox.container import label_of, tool_environment
from engines.sandbox.process import ConfinedProcess
from odfd.errors import sole_fault
from odfd.ingest.file_writer import FileWriter
from odfd.ingest.settings import IngestSettings

MAX_SAID: Final = 500
"""Bytes of a process's standard error that are kept for messages."""
Beside = Callable[[], Awaitable[None]]


class ProcessEnd(NamedTuple):
    """The exit code of a process, and its last words."""

    code: int
    said: str
    """The end of its standard error, as text."""


async def nothing() -> None:
    """Does nothing; the default for tasks beside a process."""


class OutputFile(NamedTuple):
    """A file that is written from a process's standard output."""

    target: Path
    name: str
    """Name of the content, in messages."""
    seconds: float
    """Seconds that the process may take altogether."""

    async def take(
        self, process: ConfinedProcess, settings: IngestSettings, *, feed: Beside = nothing, watch: Beside = nothing
    ) -> ProcessEnd:
        """Writes the output. The process and all that it started are stopped, however this ends.

        ``feed`` has to end too; ``watch`` is cancelled when the output ends. Raises their faults, Refused for too much
        output, TooSlowError.
        """
        said = bytearray()
        try:
            with trio.fail_after(self.seconds):
                async with trio.open_nursery() as watching:
                    watching.start_soon(watch)
                    async with trio.open_nursery() as streams:
                        streams.start_soon(feed)
                        streams.start_soon(_listen, process, said)
                        streams.start_soon(self._write, process, settings)
                    watching.cancel_scope.cancel()
                code = await process.wait()
        except BaseExceptionGroup as error:
            raise sole_fault(error) or error from None
        finally:
            await process.stop(0)
        return ProcessEnd(code, bytes(said).decode("utf-8", "replace").strip())

    async def _write(self, process: ConfinedProcess, settings: IngestSettings) -> None:
        with FileWriter(self.target, self.name, settings.max_source_bytes, settings.disk_reserve) as out:
            async for block in process.stdout:
                await trio.to_thread.run_sync(out.write, bytes(block))


async def _listen(process: ConfinedProcess, said: bytearray) -> None:
    async for block in process.stderr:
        said += block
        del said[:-MAX_SAID]


RULE: Final = "fetch-container"
OUT: Final = "/opt/odf/out"
"""Folder inside of a container for what it reports besides its output."""
MAX_OUT: Final = 1 << 20
"""Bytes that all files in that folder may have."""
MAX_OUT_FILES: Final = 64
PROCESSES: Final = 256
"""Processes of a container at once, threads included."""
GRACE: Final = 60
"""Seconds beyond the node's own limit after which podman itself ends a container."""
REMOVE_SECONDS: Final = 30.0
"""Seconds that podman may take to look for an image or to remove a container."""
_LOOK: Final = 0.25
"""Seconds between two looks at the size of the folder, which podman cannot bound."""
_FILES: Final = 4096
_TMP: Final = 256 << 20
"""Bytes of each folder of temporary files, which are in memory and count as such."""
_NOBODY: Final = 65534
_PODMAN_FAILED: Final = 125


class ContainerJob(msgspec.Struct, frozen=True, kw_only=True):
    """The program to run in a container. ``image`` is named by digest."""

    image: str
    command: tuple[str, ...] | None
    """Replaces the image's entry point, if given."""
    args: tuple[str, ...]
    env: Mapping[str, str]
    network: bool
    owner: str
    """Id of the dataset that the container belongs to; it has one container at a time."""
    folder: Path
    """An empty folder for the container's reports and for files that podman needs."""

    @property
    def out(self) -> Path:
        """The folder on this machine that is ``OUT`` inside of the container."""
        return self.folder / "out"

    @property
    def variables(self) -> Path:
        return self.folder / "variables"

    def name(self, staging: Path) -> str:
        """Returns the name of the container; other nodes of this machine use other names."""
        digest = hashlib.sha3_256("\0".join((str(staging), self.owner)).encode())
        return f"odfd-fetch-{digest.hexdigest()[:24]}"


async def run_container(job: ContainerJob, target: Path, settings: IngestSettings) -> None:
    """Runs a container and writes its output to ``target``. All its processes end, however this ends.

    Raises Refused (no podman, too much time or output), Invalid (it failed), Environment (no image, cannot be started).
    """
    binary = shutil.which("podman")
    if binary is None:
        raise no_podman()
    name = job.name(settings.staging)
    await settings.former.remove(settings.staging)
    await _remove(binary, name)
    await _check_image(binary, job.image)
    await trio.to_thread.run_sync(_make_folder, job)
    try:
        ended = await _run([binary, *arguments(job, name, settings)], job, target, settings)
    finally:
        with trio.CancelScope(shield=True):
            await _remove(binary, name)
            job.variables.unlink(missing_ok=True)
    if ended.code:
        raise _failure(job.image, ended, settings)


async def _run(argv: list[str], job: ContainerJob, target: Path, settings: IngestSettings) -> ProcessEnd:
    try:
        process = ConfinedProcess(_popen(argv, job.folder))
    except OSError as error:
        raise Environment(f"cannot start podman: {error.strerror}", rule=RULE) from error
    output = OutputFile(target, f"what the container of {job.image} gave", settings.patience.total)
    try:
        return await output.take(process, settings, feed=process.stdin.aclose, watch=partial(_watch, job.out))
    except trio.TooSlowError as error:
        raise Refused(
            f"the container of {job.image} ran over {settings.patience.total:g} s",
            rule=RULE,
            hint="raise ingest.fetch-seconds of the settings, if it needs longer",
        ) from error


def _popen(argv: list[str], folder: Path) -> subprocess.Popen[bytes]:
    """Starts podman with only those environment variables that it needs to find images."""
    return subprocess.Popen(
        argv,
        env=tool_environment(),
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def arguments(job: ContainerJob, name: str, settings: IngestSettings) -> list[str]:
    """Returns podman's arguments. The container's environment is in a file, since other users can see arguments."""
    memory = settings.container_memory
    files = min(_FILES, _hard(resource.RLIMIT_NOFILE))
    entry = () if job.command is None else (f"--entrypoint={msgspec.json.encode(job.command).decode()}",)
    return [
        # Without a log: podman would keep a copy of the output. The label lets the next life remove it.
        *("run", "--rm", "--pull=never", "--name", name, "--label", label_of(settings.staging), "--log-driver=none"),
        *("--network=private" if job.network else "--network=none", "--hostname=localhost", "--ipc=private"),
        # podman's own temporary folders of a read-only container have no bound.
        *("--read-only", "--read-only-tmpfs=false", "--cap-drop=all", "--security-opt=no-new-privileges"),
        *("--user", f"{user()}:{user()}" if not os.geteuid() else f"{os.geteuid()}:{os.getegid()}"),
        # What a rootless container leaves has to belong to the node's user.
        *(("--userns=keep-id",) if os.geteuid() else ()),
        # --memory-swap is memory and swap together: this is no swap.
        *(f"--memory={memory}", f"--memory-swap={memory}", f"--pids-limit={PROCESSES}"),
        *("--ulimit", f"nofile={files}:{files}", "--ulimit", f"nproc={_processes()}", "--ulimit", "core=0:0"),
        f"--timeout={math.ceil(settings.patience.total) + GRACE}",
        *(word for place in ("/tmp", "/var/tmp", "/run") for word in ("--tmpfs", f"{place}:{_tmpfs()}")),  # noqa: S108
        *("--volume", f"{job.out}:{OUT}:rw", "--env-file", str(job.variables), *entry),
        job.image,
        *job.args,
    ]


def user() -> int:
    """Returns the user id inside of the container: nobody if the node runs as root, else the node's own."""
    return os.geteuid() or _NOBODY


def _tmpfs() -> str:
    return f"rw,nosuid,nodev,mode=1777,size={_TMP}"


def _hard(number: int) -> int:
    most = resource.getrlimit(number)[1]
    return _FILES if most == resource.RLIM_INFINITY else most


def _processes() -> str:
    most = min(_FILES, _hard(resource.RLIMIT_NPROC))
    return f"{most}:{most}"


def _make_folder(job: ContainerJob) -> None:
    job.out.mkdir()
    if not os.geteuid():
        os.chown(job.out, _NOBODY, _NOBODY)
    lines = "".join(f"{name}={value}\n" for name, value in job.env.items())
    with os.fdopen(os.open(job.variables, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(lines)


def no_podman() -> Refused:
    return Refused(
        "fetch: Container needs podman, which is not installed",
        rule=RULE,
        hint="install podman, or fetch with a tool of your own and use FilesGlob",
    )


async def podman_version() -> str:
    """Returns the version of podman. Raises Refused without one, Environment if it does not run."""
    binary = shutil.which("podman")
    if binary is None:
        raise no_podman()
    done = await _podman(binary, "version", "--format", "{{.Client.Version}}")
    if done.returncode:
        words = done.stderr.decode("utf-8", "replace").strip()[-MAX_SAID:]
        raise Environment(f"podman does not run: {words}", rule=RULE, hint="as the node's user: podman info")
    return done.stdout.decode("utf-8", "replace").strip()


async def _check_image(binary: str, image: str) -> None:
    """Raises Environment if an image is not on this machine."""
    found = await _podman(binary, "image", "exists", image)
    if found.returncode:
        words = found.stderr.decode("utf-8", "replace").strip()[-MAX_SAID:]
        raise Environment(
            f"the image {image} is not on this machine" + (f": {words}" if words else ""),
            rule=RULE,
            hint=f"a node fetches no images; as its user: podman pull {image}",
        )


async def _remove(binary: str, name: str) -> None:
    """Ends and removes a container, if there is one. Raises Environment."""
    done = await _podman(binary, "rm", "--force", "--ignore", "--time=0", "--volumes", name)
    if done.returncode:
        words = done.stderr.decode("utf-8", "replace").strip()[-MAX_SAID:]
        raise Environment(f"podman cannot remove the container {name}: {words}", rule=RULE)


async def _podman(binary: str, *words: str) -> subprocess.CompletedProcess[bytes]:
    try:
        with trio.fail_after(REMOVE_SECONDS):
            return await trio.run_process(
                [binary, *words], capture_stdout=True, capture_stderr=True, check=False, env=tool_environment()
            )
    except trio.TooSlowError as error:
        raise Environment(
            f"podman {' '.join(words[:2])} gave no answer in {REMOVE_SECONDS:g} s",
            rule=RULE,
            hint="check that podman works",
        ) from error
    except OSError as error:
        raise Environment(f"cannot start podman: {error.strerror}", rule=RULE) from error


def _failure(image: str, ended: ProcessEnd, settings: IngestSettings) -> Invalid | Environment:
    text = f": {ended.said}" if ended.said else ""
    if ended.code == _PODMAN_FAILED:
        return Environment(
            f"podman cannot run {image}{text}", rule=RULE, hint="check that `podman run` works for this user"
        )
    mib = settings.container_memory >> 20
    return Invalid(
        f"the container of {image} ended with {ended.code}{text}",
        rule=RULE,
        hint="" if text else f"it may use {mib:,} MiB of memory (ingest.container-memory-mib)",
    )


async def _watch(out: Path) -> None:
    """Checks the container's folder again and again. Raises Refused once it holds too much."""
    while True:
        await trio.to_thread.run_sync(check_left, out)
        await trio.sleep(_LOOK)


def check_left(out: Path) -> None:
    """Raises Refused if the folder of a container holds too many files or bytes. Blocking."""
    files = size = 0
    for folder, folders, names in os.walk(out):
        files += len(folders) + len(names)
        for path in (Path(folder, name) for name in names):
            try:
                found = path.lstat()
            except OSError:  # gone meanwhile
                continue
            # A file with holes has more bytes than blocks, and one with room ahead more blocks than bytes.
            size += max(found.st_size, found.st_blocks * 512) if stat.S_ISREG(found.st_mode) else 0
        if files > MAX_OUT_FILES or size > MAX_OUT:
            raise Refused(
                f"a container left {plural(files, 'file')} and {size:,} bytes in {OUT}",
                rule=RULE,
                hint=f"at most {MAX_OUT_FILES} files and {MAX_OUT:,} bytes; data belong on its standard output",
            )

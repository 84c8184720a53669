"""Puts together the Spark engine of this machine: Java, sandbox, digest, limits.

Runs once when the daemon starts. All slow steps run in threads, which are abandoned if nobody waits for them any more:
each writes its result in one step. The findings (the level in use, why better ones are not, which Java) are returned to
be shown to people, and nothing is assumed that was not tried.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Final, TypeVar

import trio

from engines.contract import EngineIdentity
from engines.errors import need_spark
from engines.identity import FileDigests, host_manifest, identity_of, image_identity
from engines.image.installed import prepare_image
from engines.provision.preparation import Preparation, of_host, of_image
from engines.provision.settings import Isolation, OnEvent, Program, WarmSettings, WarmthLimits, Within
from engines.provision.warm import WarmEngine
from engines.request_control import CallLimits
from engines.sandbox.base import Sandbox, SandboxLevel
from engines.sandbox.container import label_of
from engines.sandbox.probe import SandboxChoice, choose, choose_unconfined
from engines.spark.runtime.java import Java, find_archive, find_java, installed_digests
from engines.spark.runtime.settings import (
    EXECUTOR_SECONDS,
    MEMORY_BEYOND_HEAP,
    heap_bytes,
    manifest_settings,
    parse_master,
)

R = TypeVar("R")
MEMORY_TOGETHER: Final = 2
"""Memory of all processes together, as a multiple of that of one: the JVM, Python with the result of a
query, and workers of an ingest."""
PROCESSES: Final = 2048
"""Most processes, threads included: a JVM with two cores has a hundred, and each further core adds a few."""
_NETWORK: Final = "executors of a cluster need the network that it takes away"


@dataclass(frozen=True, slots=True)
class OnCluster:
    """A Spark cluster that executes the work of an engine of this machine."""

    master: str
    """Address of its master: ``spark://host:port``, ``yarn`` or ``k8s://…``."""
    address: str = "127.0.0.1"
    """Address of this machine, as executors reach it."""
    settings: Path | None = None
    """File with further settings of Spark; ``None``: there are none."""

    def arguments(self) -> tuple[str, ...]:
        more = ("--settings", str(self.settings)) if self.settings is not None else ()
        return ("--master", self.master, "--address", self.address, *more)


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkOptions:
    """The options of this machine's Spark engine."""

    scratch: Path
    """Folder that is emptied at start; on the file system of the objects, if inputs are to be hard links."""
    cache: Path
    """A folder that may be lost: digests of Spark's jars and, once recorded, the JVM's class data archive."""
    cores: int = 2
    heap: str = "2g"
    quick: bool = False
    """Whether to start quickly, at the cost of long computations (``SessionOptions.quick``)."""
    minimum: SandboxLevel = SandboxLevel.NONE
    """The weakest level of isolation that is acceptable."""
    cluster: OnCluster | None = None
    """The cluster on which tasks run; ``None``: in threads of this machine."""
    isolation: Isolation = Isolation.SHARED
    processes: int = 4
    """Most processes at once, where datasets are isolated; each may take its heap."""
    limits: WarmthLimits = field(default_factory=WarmthLimits)
    calls: CallLimits = field(default_factory=CallLimits)
    while_starting: Within = nullcontext


@dataclass(frozen=True, slots=True)
class HostEngine:
    """An engine with its properties. ``engine.run`` has still to be run."""

    engine: WarmEngine
    identity: EngineIdentity
    choice: SandboxChoice
    java: Java
    cluster: OnCluster | None = None


async def spark_engine(options: SparkOptions, environ: Mapping[str, str], on_event: OnEvent) -> HostEngine:
    """Finds the parts of the engine and puts them together. Raises EngineLost without Java, Refused without a sandbox,
    Environment for a broken install, Invalid."""
    need_spark()
    java = await _aside(partial(find_java, environ, options.cache))
    choice = await _isolation(options, java)
    sandbox = choice.sandbox
    if choice.image is not None:
        identity = image_identity(choice.image.version, choice.image.manifest, choice.level.value)
    else:
        identity = await _aside(partial(_identity, java.runtime, options.cache, choice.level))
    if choice.image is None:
        recorded = await _aside(partial(find_archive, options.cache, java))
        start = Preparation() if recorded is None else of_host(recorded)
    else:
        start = of_image(choice.image)
    memory = heap_bytes(options.heap) + MEMORY_BEYOND_HEAP
    settings = WarmSettings(
        name="spark",
        program=_program(options, sandbox, sandbox.path_inside(start.archive) if start.archive else None),
        sandbox=sandbox,
        identity=identity,
        scratch=options.scratch,
        env={"JAVA_HOME": str(sandbox.java_home or java.runtime), **start.env},
        mounts=start.mounts,
        memory=memory,
        total=MEMORY_TOGETHER * memory,
        processes=PROCESSES,
        groups=choice.groups,
        isolation=options.isolation,
        most=options.processes if options.isolation is Isolation.DATASET else 1,
        limits=_limits(options),
        calls=options.calls,
        while_starting=options.while_starting,
    )
    return HostEngine(WarmEngine(settings, on_event), identity, choice, java, options.cluster)


async def _aside(call: Callable[[], R]) -> R:
    return await trio.to_thread.run_sync(call, abandon_on_cancel=True)  # type: ignore[call-arg]  # not in its stubs


async def _isolation(options: SparkOptions, java: Java) -> SandboxChoice:
    if options.cluster is None:
        image = await _aside(partial(prepare_image, options.cache))
        return await choose(options.minimum, (java.runtime,), image, label_of(options.scratch))
    parse_master(options.cluster.master)
    return await choose_unconfined(options.minimum, _NETWORK)


def _limits(options: SparkOptions) -> WarmthLimits:
    if options.cluster is None:
        return options.limits
    # A cluster gives executors when it has room for them.
    return replace(options.limits, start=options.limits.start + EXECUTOR_SECONDS)


def _program(options: SparkOptions, sandbox: Sandbox, archive: PurePosixPath | None) -> Program:
    def argv(listen: str, scratch: PurePosixPath) -> tuple[str, ...]:
        # -P: the folder the node happens to be started in must not provide modules.
        return (
            *(sandbox.python, "-P", "-m", "engines.spark", "--listen", listen, "--scratch", str(scratch)),
            *("--cores", str(options.cores), "--heap", options.heap, "--sandbox", sandbox.level.value),
            "--tell-session",
            *(("--archive", str(archive)) if archive is not None else ()),
            *(("--quick",) if options.quick else ()),
            *(options.cluster.arguments() if options.cluster is not None else ()),
        )

    return argv


def _identity(java_home: Path, cache: Path, level: SandboxLevel) -> EngineIdentity:
    digests = FileDigests(cache / "engine-digests.json", installed_digests())
    identity = identity_of(host_manifest(manifest_settings(), java_home, digests), level.value)
    digests.save()
    return identity

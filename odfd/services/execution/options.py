"""Translates the node's settings into the options of each component."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from chain.errors import Refused
from config.model import Engine, Settings
from engines.provision.host import OnCluster, SparkOptions
from engines.provision.settings import Isolation, WarmthLimits
from engines.query.reader import QueryLimits
from engines.request_control import CallLimits
from engines.sandbox.base import SandboxLevel
from engines.sandbox.probe import SandboxChoice, choose
from odfd.ingest.local_files import LocalFiles
from odfd.ingest.settings import ContainerMode, IngestSettings, PipeMode
from odfd.store.directory import STAGING, StateDirectory
from p2p.web.client import Patience


def spark_options(settings: Settings, home: StateDirectory) -> SparkOptions:
    engine = settings.engine
    return SparkOptions(
        scratch=home.directory / "engine",
        cache=home.folder("cache"),
        cores=engine.cores or os.cpu_count() or 1,
        heap=f"{engine.heap_mib}m",
        quick=engine.quick_start,
        minimum=SandboxLevel(engine.sandbox if engine.sandbox != "auto" else "none"),
        limits=WarmthLimits(start=engine.start_seconds, idle=engine.idle_seconds),
        calls=CallLimits(work=engine.request_seconds),
        cluster=_cluster(engine),
        isolation=Isolation(engine.isolation),
        processes=engine.max_processes,
    )


def query_limits(settings: Settings) -> QueryLimits:
    query = settings.query
    return QueryLimits(
        most=query.readers,
        memory=query.memory_mib << 20,
        temporary=query.temporary_mib << 20,
        seconds=query.seconds,
        threads=query.threads,
    )


async def query_isolation(settings: Settings) -> SandboxChoice:
    """Chooses the sandbox of queries, which run with the host's Python. Raises Refused for a stricter setting."""
    sandbox = settings.engine.sandbox
    least = SandboxLevel(sandbox if sandbox != "auto" else "none")
    if least.rank > SandboxLevel.HOST.rank:
        raise Refused(
            f"queries run at the sandbox level `host` at the best, and `{sandbox}` or better is asked for",
            rule="sandbox-level",
            hint='engine.sandbox = "host" lets them run',
        )
    return await choose(least)


def engine_environ(settings: Settings, environ: Mapping[str, str]) -> Mapping[str, str]:
    """Returns the engine's environment, where the Java of the settings replaces the user's."""
    home = settings.engine.java_home
    return {**environ, "JAVA_HOME": home} if home else environ


def ingest_settings(settings: Settings, home: StateDirectory, environ: Mapping[str, str]) -> IngestSettings:
    """Makes the settings of ingestion. Sources see only variables that the settings name: others hold secrets."""
    ingest = settings.ingest
    return IngestSettings(
        staging=home.folder(STAGING),
        max_source_bytes=ingest.source_bytes,
        max_unpack_ratio=ingest.unpack_ratio,
        max_record_bytes=ingest.record_bytes,
        disk_reserve=settings.limits.disk_reserve_bytes,
        patience=Patience(
            connect=ingest.connect_seconds,
            silence=ingest.silence_seconds,
            span=ingest.silence_seconds,
            least=round(ingest.least_rate * ingest.silence_seconds),
            total=ingest.fetch_seconds,
        ),
        readable=LocalFiles(
            (home.directory.resolve(),), tuple(Path(folder).expanduser().resolve() for folder in ingest.folders)
        ),
        settle=ingest.settle_seconds,
        settle_closed=ingest.settle_closed_seconds,
        pipe=_PIPES[ingest.pipe],
        pipe_memory=ingest.pipe_memory_mib << 20,
        pipe_timeout=ingest.pipe_seconds,
        container=_CONTAINERS[ingest.container],
        container_memory=ingest.container_memory_mib << 20,
        variables=_those(ingest.variables, environ),
        allowed=ingest.variables,
        environment=_those(_PLAIN, environ),
    )


_PIPES: Final[Mapping[str, PipeMode]] = {"sandbox": "sandbox", "user": "user", "never": "never"}
_CONTAINERS: Final[Mapping[str, ContainerMode]] = {"never": "never", "offline": "offline", "network": "network"}
_PLAIN: Final = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR")
"""Variables that a command of a Pipe step needs, and that hold no secrets."""


def _those(names: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    return {name: environ[name] for name in names if name in environ}


def _cluster(engine: Engine) -> OnCluster | None:
    if not engine.master:
        return None
    return OnCluster(
        engine.master, engine.cluster_address, Path(engine.cluster_settings) if engine.cluster_settings else None
    )

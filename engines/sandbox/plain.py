"""Runs jobs at level ``none``: as the node's own user, with limits and a tied life, and with all in its reach."""

from __future__ import annotations

import sys
from collections.abc import Sequence, Set
from pathlib import PurePosixPath

from config.code_path import code_environment
from engines.sandbox.base import Command, Job, Level, Mount


class PlainProcess:
    """Protects against accidents (memory, orphans), not against intent."""

    level = Level.NONE
    java_home = None

    @property
    def python(self) -> str:
        return sys.executable

    @property
    def bounds(self) -> Set[str]:
        return frozenset()

    def data(self) -> Sequence[bytes]:
        return ()

    def command(self, job: Job, _: Sequence[int], /) -> Command:
        return Command(job.argv, {**code_environment(), **job.env})

    def seen(self, mount: Mount, /) -> PurePosixPath:
        return PurePosixPath(mount.source)

"""Lists what a sandbox contains: an unpacked image, or the host's interpreter, packages, JVM and files of /etc.

Everything is read-only and appears under its own path, so that no path in an interpreter or a JVM has to change.
Found anew at each start (an upgrade may have moved things); never includes a home directory or the node's state.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final

from config.paths import code_environment
from engines.image.etc import WRITTEN
from engines.image.installed import ENVIRONMENT, JAVA_HOME, PYTHON, Image
from engines.sandbox.base import Level, Mount

CODE: Final = ("chain", "config", "engines")
"""Packages of ours that run inside."""
FROM_ROOT: Final = ("bin", "sbin", "lib", "lib32", "lib64")
"""Beside /usr; on a merged-/usr system they are links into it."""
FROM_ETC: Final = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "localtime", "mime.types")
_JAVA_PARTS: Final = ("conf", "lib")
"""Debian links files in these to /etc/java-*; the thousand links in ``legal`` do not matter."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """What a sandbox is filled with: read-only mounts, links as (text, place), files as place and content."""

    level: Level
    python: str
    mounts: tuple[Mount, ...]
    links: tuple[tuple[str, str], ...] = ()
    written: Mapping[str, bytes] = field(default_factory=dict)
    java_home: Path | None = None
    """Inside, if it brings one."""
    environment: Mapping[str, str] = field(default_factory=dict)


def host_runtime(java_homes: Iterable[Path]) -> Runtime:
    """The runtime of the interpreter that runs this, plus the given Java homes."""
    links = tuple((str(Path("/", name).readlink()), f"/{name}") for name in FROM_ROOT if Path("/", name).is_symlink())
    folders = [Path("/usr"), *(Path("/", name) for name in FROM_ROOT if not Path("/", name).is_symlink())]
    folders += [Path("/etc", name) for name in FROM_ETC]
    folders += [Path(sys.base_prefix), Path(sys.prefix), Path(sys.executable).resolve().parent.parent]
    folders += list(_code())
    for home in java_homes:
        folders += [home.resolve(), *_outside(home.resolve())]
    mounts = tuple(Mount(path, PurePosixPath(path), optional=True) for path in _outermost(folders))
    return Runtime(Level.HOST, sys.executable, mounts, links, WRITTEN, environment=code_environment())


def image_runtime(image: Image) -> Runtime:
    """An unpacked image in place of the host's files."""
    whole = Mount(image.rootfs, PurePosixPath("/"))
    return Runtime(Level.IMAGE, PYTHON, (whole,), java_home=Path(JAVA_HOME), environment=ENVIRONMENT)


def _code() -> Iterator[Path]:
    for name in CODE:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None:
            yield Path(spec.origin).parent


def _outside(home: Path) -> Iterator[Path]:
    """Files that a Java home links to beyond itself."""
    for part in _JAVA_PARTS:
        for folder, names, files in os.walk(home / part):
            for name in (*names, *files):
                path = Path(folder, name)
                if path.is_symlink() and not path.resolve().is_relative_to(home):
                    yield path.resolve()


def _outermost(folders: Iterable[Path]) -> list[Path]:
    """Without those that lie inside another one; parents first, so that later mounts do not hide earlier ones."""
    kept: list[Path] = []
    for path in sorted(set(folders), key=lambda each: (len(each.parts), each)):
        if not any(path.is_relative_to(parent) for parent in kept):
            kept.append(path)
    return kept

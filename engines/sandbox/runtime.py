"""What of the host a Python and Java engine needs to see: the interpreter, its packages, the JVM, a few files of /etc.

Everything is read-only and appears under its own path, so that no path in an interpreter or a JVM has to change.
Found anew at each start (an upgrade may have moved things); never includes a home directory or the node's state.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from engines.sandbox.base import Mount

CODE: Final = ("chain", "config", "engines")
"""Packages of ours that run inside."""
FROM_ROOT: Final = ("bin", "sbin", "lib", "lib32", "lib64")
"""Beside /usr; on a merged-/usr system they are links into it."""
FROM_ETC: Final = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "localtime", "mime.types")
WRITTEN: Final = {
    "/etc/passwd": b"odf:x:1000:1000::/tmp:/bin/sh\n",
    "/etc/group": b"odf:x:1000:\n",
    "/etc/hosts": b"127.0.0.1 localhost\n::1 localhost\n",
    "/etc/nsswitch.conf": b"passwd: files\ngroup: files\nhosts: files\n",
}
"""Without an entry for its user Hadoop finds no home and fails; without hosts nothing resolves ``localhost``."""
_JAVA_PARTS: Final = ("conf", "lib")
"""Debian links files in these to /etc/java-*; the thousand links in ``legal`` do not matter."""


@dataclass(frozen=True, slots=True)
class HostRuntime:
    """Read-only mounts, and links as (text, place)."""

    mounts: tuple[Mount, ...]
    links: tuple[tuple[str, str], ...]


def host_runtime(java_homes: Iterable[Path]) -> HostRuntime:
    """The runtime of the interpreter that runs this, plus the given Java homes."""
    links = tuple((str(Path("/", name).readlink()), f"/{name}") for name in FROM_ROOT if Path("/", name).is_symlink())
    folders = [Path("/usr"), *(Path("/", name) for name in FROM_ROOT if not Path("/", name).is_symlink())]
    folders += [Path("/etc", name) for name in FROM_ETC]
    folders += [Path(sys.base_prefix), Path(sys.prefix), Path(sys.executable).resolve().parent.parent]
    folders += list(_code())
    for home in java_homes:
        folders += [home.resolve(), *_outside(home.resolve())]
    return HostRuntime(tuple(Mount(path, PurePosixPath(path), optional=True) for path in _outermost(folders)), links)


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

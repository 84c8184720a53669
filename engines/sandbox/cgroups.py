"""Limits all processes of a job together by control groups: version 2 in a delegated subtree, or version 1.

Bubblewrap has no limits of its own, and rlimits bind each process alone. Where no group can be made (no delegation, or
a container that shows them read-only) ``find_groups`` says why, and only rlimits remain. A group is named after the
process that made it, so that the next start can find what a killed node left, and end it.
"""

from __future__ import annotations

import itertools
import os
import re
import signal
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ROOT: Final = Path("/sys/fs/cgroup")
_NAME: Final = re.compile(r"odfd-(\d+)-\d+\Z")
NODE: Final = "odfd-node"
"""Name of the group of the node itself, beside those of its jobs."""
_NEEDED: Final[tuple[str, ...]] = ("memory", "pids")
_V1_LIMITS: Final = {"memory": ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"), "pids": ("pids.max",)}
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """The control groups of a job: one folder in version 2, one for each controller in version 1."""

    folders: tuple[Path, ...]

    @property
    def entrances(self) -> tuple[str, ...]:
        """Paths of files in which a process writes ``0`` to enter the group; its later children are in it too."""
        return tuple(str(folder / "cgroup.procs") for folder in self.folders)

    def end(self) -> None:
        """Kills every process in the group; their parent must reap them. Idempotent."""
        for folder in self.folders:
            if (folder / "cgroup.kill").exists():
                with suppress(OSError):
                    (folder / "cgroup.kill").write_text("1")
            else:
                _kill_each(folder)

    def remove(self) -> bool:
        """Removes the group. Returns whether that succeeded: the kernel keeps a group until its last
        process is dead."""
        for folder in self.folders:
            with suppress(OSError):
                folder.rmdir()
        return not any(folder.exists() for folder in self.folders)


@dataclass(frozen=True, slots=True)
class Groups:
    """The place where this process may make control groups."""

    version: int
    parents: Mapping[str, Path] = field(default_factory=dict)
    """Folder by controller; in version 2 all are the same."""

    def make(self, memory: int | None, processes: int | None) -> ControlGroup:
        """Makes a group with limits, in bytes (swap included) and tasks. Raises OSError."""
        name = f"odfd-{os.getpid()}-{next(_numbers)}"
        folders = tuple(dict.fromkeys(parent / name for parent in self.parents.values()))
        group = ControlGroup(folders)
        try:
            for folder in folders:
                folder.mkdir()
            for file, value in self._limits(name, memory, processes):
                file.write_text(str(value))
        except OSError:
            group.remove()
            raise
        return group

    def _limits(self, name: str, memory: int | None, processes: int | None) -> Iterator[tuple[Path, int]]:
        values = {"memory": memory, "pids": processes}
        for controller, parent in self.parents.items():
            value = values[controller]
            if value is None:
                continue
            folder = parent / name
            if self.version == 2:
                yield folder / f"{controller}.max", value
                if controller == "memory" and (folder / "memory.swap.max").exists():
                    # Version 2 counts swap apart: a job over its limit would fill it, and never be ended.
                    yield folder / "memory.swap.max", 0
            else:
                yield from ((folder / file, value) for file in _V1_LIMITS[controller] if (folder / file).exists())

    def sweep(self) -> list[str]:
        """Ends groups left by stopped nodes. Returns their names."""
        swept = []
        for parent in dict.fromkeys(self.parents.values()):
            for folder in sorted(parent.glob("odfd-*")):
                owner = _NAME.match(folder.name)
                if owner is not None and not Path("/proc", owner[1]).exists():
                    group = ControlGroup((folder,))
                    group.end()
                    group.remove()
                    swept.append(folder.name)
        return swept


def find_groups(root: Path = ROOT, membership: Path = Path("/proc/self/cgroup")) -> Groups | str:
    """Finds where groups can be made; returns the reason if nowhere. If version 2 needs it, moves this
    process into its own group."""
    try:
        lines = [line.split(":", 2) for line in membership.read_text().splitlines()]
    except OSError as error:
        return f"no control groups: {error.strerror}"
    mine = {controller: path for _, controllers, path in lines for controller in controllers.split(",")}
    if "" in mine and (root / "cgroup.controllers").exists():
        return _version_2(root / mine[""].lstrip("/"))
    parents = {}
    for controller in _NEEDED:
        parent = root / controller / mine.get(controller, "/").lstrip("/")
        if controller not in mine or not os.access(parent, os.W_OK):
            return f"no control group of kind {controller} that this user may divide"
        parents[controller] = parent
    return Groups(1, parents)


def _version_2(own: Path) -> Groups | str:
    base = own.parent if own.name == NODE else own
    try:
        offered = (base / "cgroup.controllers").read_text().split()
        missing = [controller for controller in _NEEDED if controller not in offered]
        if missing:
            return f"its control group offers no {', '.join(missing)}: under systemd, Delegate=memory pids"
        if not set(_NEEDED) <= set((base / "cgroup.subtree_control").read_text().split()):
            _make_room(base)
    except OSError as error:
        return f"the control group of this process cannot be divided: {error.strerror}"
    return Groups(2, dict.fromkeys(_NEEDED, base))


def _make_room(base: Path) -> None:
    """Moves this process into a group of its own: a group with subgroups must hold no processes itself."""
    node = base / NODE
    node.mkdir(exist_ok=True)
    (node / "cgroup.procs").write_text("0")
    try:
        (base / "cgroup.subtree_control").write_text(" ".join(f"+{controller}" for controller in _NEEDED))
    except OSError:
        # Other processes are in this group too, so we may not divide it.
        (base / "cgroup.procs").write_text("0")
        node.rmdir()
        raise


def limit_node(memory: int, root: Path = ROOT, membership: Path = Path("/proc/self/cgroup")) -> str:
    """Limits the bytes that this process and its children outside of groups may hold.

    Returns the reason if that cannot be enforced, else an empty text. Sets no lower limit at which the kernel would
    throttle the process: a restart is better than a throttled node.
    """
    found = find_groups(root, membership)
    if isinstance(found, str):
        return found
    if found.version != 2:
        return "control groups of version 1, which the node does not enter itself"
    node = found.parents["memory"] / NODE
    try:
        (node / "memory.max").write_text(str(memory))
    except OSError as error:
        return f"{node} takes no limit: {error.strerror}"
    return ""


def _kill_each(folder: Path) -> None:
    """Kills the processes of a version 1 group, which has no ``cgroup.kill``, until none is left that was not tried."""
    seen: set[int] = set()
    while True:
        try:
            inside = {int(pid) for pid in (folder / "cgroup.procs").read_text().split()} - seen
        except OSError:
            return
        if not inside:
            return
        seen |= inside
        for pid in inside:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

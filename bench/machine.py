"""Records the machine that a figure was measured on, and memory of processes, from ``/proc``."""

from __future__ import annotations

import contextlib
import importlib
import os
import platform
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Final

_KIB = 1024


def facts() -> dict[str, str | float]:
    """Returns the properties of this machine, now."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory": _field(Path("/proc/meminfo"), "MemTotal"),
        "load": load(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "pyarrow": version("pyarrow"),
        "libp2p": version("libp2p"),
        "pyspark": version("pyspark"),
    }


def load() -> float:
    """Returns the average number of runnable programs over the last minute."""
    return os.getloadavg()[0]


def resident(pid: int | str = "self") -> int:
    """Bytes of memory that a process has in use now."""
    return _field(Path(f"/proc/{pid}/status"), "VmRSS")


def highest(pid: int | str = "self") -> int:
    """Returns a process's peak memory in bytes."""
    return _field(Path(f"/proc/{pid}/status"), "VmHWM")


_ALL_THREADS: Final = 2
"""Linux: the clock of what the scheduler gave to a process, to the nanosecond."""


def spent(pid: int) -> float:
    """Seconds of CPU that a process has had, in all its threads."""
    return time.clock_gettime(~pid << 3 | _ALL_THREADS)  # as clock_getcpuclockid(3) names that clock


def wake_ups(pid: int) -> float:
    """How often threads of a process went to sleep of themselves, and so woke up again."""
    found = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        line = next(each for each in status.read_text().splitlines() if each.startswith("voluntary_ctxt_switches"))
        found += int(line.split()[1])
    return float(found)


def spent_below(pid: int) -> float:
    """Returns the CPU time of a process and all its present descendants, those in sandboxes included."""
    below: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it has ended
                below.setdefault(_field_of_stat(entry, 1), []).append(int(entry.name))
    total, todo = 0.0, [pid]
    while todo:
        here = todo.pop()
        todo += below.get(here, [])
        with contextlib.suppress(OSError):
            total += spent(here)
    return total


def _field_of_stat(process: Path, number: int) -> int:
    """Behind the name, which may hold anything."""
    return int((process / "stat").read_text().rpartition(")")[2].split()[number])


class Peak:
    """Measures the growth of this process's peak memory in the block: ``bytes``, known at its end."""

    bytes = 0

    def __enter__(self) -> Peak:
        Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
        self._before = resident()
        return self

    def __exit__(self, *_: object) -> None:
        self.bytes = max(0, _field(Path("/proc/self/status"), "VmHWM") - self._before)


def alone(module: str, *words: object) -> float:
    """Returns the MiB by which a new process grows that calls ``main`` of a module, as this one keeps freed memory."""
    command = [sys.executable, "-m", "bench.machine", module, *map(str, words)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=Path(__file__).parents[1])
    return float(done.stdout)


def _field(file: Path, name: str) -> int:
    line = next(line for line in file.read_text().splitlines() if line.startswith(name + ":"))
    return int(line.split()[1]) * _KIB


if __name__ == "__main__":
    work = importlib.import_module(sys.argv[1]).main
    with Peak() as peak:
        work(*sys.argv[2:])
    print(peak.bytes / 2**20)

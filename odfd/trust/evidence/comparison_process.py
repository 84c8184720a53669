"""Compares two slices in a process of its own, with limits on memory and time, so that no slice harms the node.

The publisher's file decides how much memory its values take, and it is read just when it may be malicious. The process
gets two paths and answers on standard output; if it ends in any other way, the difference is reported without rows. Run
as ``python -m odfd.trust.evidence.comparison_process PUBLISHED COMPUTED``.
"""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import msgspec
import trio

from chain.errors import Fault
from odfd.trust.evidence.row_diff import RowDifference, compare

MEMORY: Final = 1 << 30
"""Bytes of address space: the interpreter and Arrow take some 300 MiB of it."""
SECONDS: Final = 60
"""Seconds of processor time."""
PATIENCE: Final = 120.0
"""Seconds until the process is killed."""
OUT_OF_MEMORY: Final = 12
"""Exit code of a process that could get no more memory."""
MAX_ANSWER: Final = 1 << 20
"""Bytes of an answer: twenty rows."""
_ENVIRONMENT: Final = {"ARROW_DEFAULT_MEMORY_POOL": "system", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""Environment of the process: one arena and no threads, since each would reserve address space in advance."""


async def compare_in_process(published: Path, computed: Path) -> RowDifference:
    """Returns the first differences. Never fails because of file contents: reports that files cannot be compared."""
    argv = [sys.executable, "-m", __spec__.name if __spec__ else __name__, str(published), str(computed)]
    done: subprocess.CompletedProcess[bytes] | None = None
    with trio.move_on_after(PATIENCE):
        done = await trio.run_process(
            argv, capture_stdout=True, capture_stderr=True, check=False, env={**_ENVIRONMENT, "PYTHONPATH": _path()}
        )
    why = f"comparing them took more than {PATIENCE:.0f} s" if done is None else why_ended(done)
    if done is None or why:
        return RowDifference(message=f"the slices differ; {why}")
    try:
        return RowDifference.from_bytes(done.stdout)
    except msgspec.DecodeError:
        return RowDifference(message="the slices differ; the comparison gave no answer")


def why_ended(done: subprocess.CompletedProcess[bytes]) -> str:
    """Returns why a process gave no readable answer; empty if it may have given one."""
    if done.returncode == OUT_OF_MEMORY or b"bad_alloc" in done.stderr:
        return f"comparing them took more than {MEMORY >> 20:,} MiB of memory"
    if done.returncode == -signal.SIGXCPU:
        return f"comparing them took more than {SECONDS} s of processor time"
    if done.returncode < 0:
        return f"the process that compared them was ended by signal {-done.returncode}"
    if done.returncode:
        return f"the process that compared them failed with exit code {done.returncode}"
    return "the answer of the comparison is too long" if len(done.stdout) > MAX_ANSWER else ""


def _path() -> str:
    return ":".join(part for part in sys.path if part)


def compare_here(published: Path, computed: Path) -> RowDifference:
    """Compares within this process, and returns its answer."""
    try:
        return compare(published, computed)
    except Fault as fault:
        return RowDifference(message=f"a slice cannot be compared row by row: {fault}"[:1000])


def main(published: str, computed: str) -> int:
    # A slice of 446 KiB took 2.5 GB (test_a_slice_that_would_take_all_memory_is_compared_apart).
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 5))  # the first sends SIGXCPU, the second kills
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        found = compare_here(Path(published), Path(computed))
    except MemoryError:
        return OUT_OF_MEMORY
    sys.stdout.buffer.write(found.to_bytes())
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

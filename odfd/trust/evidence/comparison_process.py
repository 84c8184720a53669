"""Compares two slices in a process of its own, with limits on memory and time, so that no slice harms the node.

What a publisher wrote decides how much memory its values take, and a re-run of a lie is when it is read. The process
gets two paths and answers on standard output; when it ends otherwise the difference is told without rows. Run as
``python -m odfd.trust.evidence.comparison_process PUBLISHED COMPUTED``.
"""

from __future__ import annotations

import resource
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
"""Of processor time."""
PATIENCE: Final = 120.0
"""Seconds until it is ended."""
MAX_ANSWER: Final = 1 << 20
"""Bytes of an answer: twenty rows."""
_ENVIRONMENT: Final = {"ARROW_DEFAULT_MEMORY_POOL": "system", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""One arena and no threads: each would take address space ahead of need."""


async def compare_apart(published: Path, computed: Path) -> RowDifference:
    """The first differences. Never fails on what the files hold: what cannot be compared is told as such."""
    argv = [sys.executable, "-m", __spec__.name if __spec__ else __name__, str(published), str(computed)]
    done: subprocess.CompletedProcess[bytes] | None = None
    with trio.move_on_after(PATIENCE):
        done = await trio.run_process(
            argv, capture_stdout=True, capture_stderr=True, check=False, env={**_ENVIRONMENT, "PYTHONPATH": _path()}
        )
    if done is None or done.returncode or len(done.stdout) > MAX_ANSWER:
        return RowDifference(message="the slices differ; comparing them took too much memory or time to tell rows")
    try:
        return RowDifference.from_bytes(done.stdout)
    except msgspec.DecodeError:
        return RowDifference(message="the slices differ; the comparison gave no answer")


def _path() -> str:
    return ":".join(part for part in sys.path if part)


def main(published: str, computed: str) -> int:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        found = compare(Path(published), Path(computed))
    except Fault as fault:
        found = RowDifference(message=f"a slice cannot be compared row by row: {fault}"[:1000])
    sys.stdout.buffer.write(found.to_bytes())
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

"""Serves one request to a source in a separate process: the job on standard input, the answer in a file.

The process decodes what a database or a broker sends, under a limit of memory. ``fetch.apart`` starts such processes.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from chain.errors import Fault

MEMORY: Final = 2 << 30
"""Bytes of private memory that the process may use."""
_ANSWER: Final = ".answer"


class SourceJob(msgspec.Struct, frozen=True, kw_only=True):
    """A request to read a source, with its secrets: only the process itself sees its standard input."""

    target: str
    """Path of the file that the data of the source is written to."""
    limit: int
    """Bytes that the target file may have."""

    @property
    def answer(self) -> Path:
        """Path of the file that the answer is written to."""
        return Path(self.target + _ANSWER)


class SourceResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer of the process: what was written, or the fault. Each subclass sets its own default ``rule``."""

    digest: str = ""
    """SHA3-256 of the data that was written, as hexadecimal digits."""
    fault: str = ""
    """Name of the class of ``chain.errors`` that was raised; empty: none."""
    message: str = ""
    rule: str = ""
    hint: str = ""


J = TypeVar("J", bound=SourceJob)
R = TypeVar("R", bound=SourceResult)


def run_job(job: J, read: Callable[[J], R], kind: type[R], hint: str) -> R:
    """Returns the result of ``read``, or a result that describes its fault. ``hint``: the advice if memory runs out."""
    try:
        return read(job)
    except Fault as fault:
        return kind(fault=type(fault).__name__, message=fault.message, rule=fault.rule, hint=fault.hint)
    except MemoryError:
        return kind(fault="Refused", message="one batch of it needs more memory than a source may use", hint=hint)


def serve(kind: type[J], answer: Callable[[J], SourceResult]) -> int:
    """Answers the request on standard input, under the limit of memory. Returns the exit code of the process."""
    # Not RLIMIT_AS: libraries reserve address space that they never touch.
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    # A core would hold the secrets of the job.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=kind)
    job.answer.write_bytes(msgspec.json.encode(answer(job)))
    return 0

"""Serves one request to a source in a process of its own: the job on standard input, the answer in a file.

What a database or a broker sends is decoded there, under a limit of memory. ``fetch.apart`` starts such processes.
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
"""Bytes of private memory of the process."""
_ANSWER: Final = ".answer"


class SourceJob(msgspec.Struct, frozen=True, kw_only=True):
    """A request. It has the secrets of the source: nobody else sees the standard input of the process."""

    target: str
    """The file to write what the source has into."""
    limit: int
    """Bytes of it."""

    @property
    def answer(self) -> Path:
        """The file of the answer."""
        return Path(self.target + _ANSWER)


class SourceResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An answer: what was written, or why nothing was. A kind of its own says what ``rule`` is by default."""

    digest: str = ""
    """SHA3-256 of what was written, as hexadecimal digits."""
    fault: str = ""
    """Name of a class of ``chain.errors``; empty: none."""
    message: str = ""
    rule: str = ""
    hint: str = ""


J = TypeVar("J", bound=SourceJob)
R = TypeVar("R", bound=SourceResult)


def answered(job: J, read: Callable[[J], R], kind: type[R], hint: str) -> R:
    """Returns what ``read`` does; a fault is an answer too. ``hint``: what to do where its memory does not suffice."""
    try:
        return read(job)
    except Fault as fault:
        return kind(fault=type(fault).__name__, message=fault.message, rule=fault.rule, hint=fault.hint)
    except MemoryError:
        return kind(fault="Refused", message="one batch of it needs more memory than a source may use", hint=hint)


def serve(kind: type[J], answer: Callable[[J], SourceResult]) -> int:
    """Answers the request on the standard input. Returns the exit code of the process."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=kind)
    job.answer.write_bytes(msgspec.json.encode(answer(job)))
    return 0

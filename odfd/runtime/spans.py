"""Records spans of traces: what a pull, a sync or a validation did, when, and as part of what.

Code says ``with span("fetch"):`` whether or not there is a tracer; without one that costs a look at a context variable.
Tasks and worker threads inherit the tracer and the current span. A span holds numbers and fixed words only: no name,
address, row or message, since it leaves the machine. The ``subject`` of a span is logged on this machine, beside the
ids of its trace, and never leaves it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import structlog
import trio

from chain.errors import Fault
from chain.instant import Instant
from odfd.errors import sole_fault
from odfd.runtime.clock import Clock

NAMES: Final = {
    "pull": "one dataset is updated",
    "fetch": "the data of a source is downloaded, or checked for changes",
    "read": "fetched data is prepared for the engine; for a derived dataset: its inputs are read and planned",
    "engine": "the engine computes, and its output is checked",
    "commit": "blocks and objects become part of the dataset",
    "sync": "one pass over a mirror",
    "negotiate": "the newest signed head and the peers that have it are found",
    "blocks": "blocks are fetched, hashed and checked by every rule",
    "objects": "data of blocks is fetched, hashed and checked against them",
    "verify": "fetched blocks are proven to be the signed history, or a prefix of it",
    "validation": "one step of another's dataset is run again, or the verdict is signed",
    "plan": "the next step is chosen",
    "run": "the step is run by an engine, and both hashes of its output are taken",
    "compare": "differing rows are searched for",
    "sign": "verdicts are signed and announced, if it is time",
}
"""Every span by name, with the work that it covers."""
ATTRIBUTES: Final = {
    "odfd.rows": "records that were committed",
    "odfd.blocks": "blocks that were fetched or committed",
    "odfd.objects": "objects that were fetched",
    "odfd.block": "number of the block that is run again",
    "odfd.reproduced": "whether the published result was reproduced",
    "odfd.fault": "rule of the fault that ended it, or the kind of the error",
    "odfd.cancelled": "whether it was cancelled",
}
"""Every attribute by name, with its meaning."""

NEVER: Final = Instant(0)
"""The end of a span that has not ended."""

Value: TypeAlias = int | bool | str


@dataclass(slots=True)
class TraceSpan:
    """One piece of work, with its beginning and end."""

    name: str
    trace_id: bytes
    """16 random bytes, the same for all spans of a trace."""
    span_id: bytes
    """8 random bytes."""
    parent_id: bytes
    """Id of the enclosing span; empty for the first of a trace."""
    began: Instant
    ended: Instant = NEVER
    failed: bool = False
    attributes: dict[str, Value] = field(default_factory=dict)

    def note(self, name: str, value: Value) -> None:
        """Sets one of ``ATTRIBUTES``. Raises KeyError for another: everything that leaves the machine is listed."""
        if name not in ATTRIBUTES:
            raise KeyError(name)
        self.attributes[name] = value


@dataclass(frozen=True, slots=True)
class Tracer:
    """Passes each ended span to ``take``, which neither blocks nor fails; called from the trio thread."""

    clock: Clock
    take: Callable[[TraceSpan], None]


_TRACER: Final[ContextVar[Tracer | None]] = ContextVar("tracer", default=None)
_CURRENT: Final[ContextVar[TraceSpan | None]] = ContextVar("span", default=None)


def trace_by(tracer: Tracer | None) -> None:
    """Sets the tracer of this task and of tasks that it starts from now on."""
    _TRACER.set(tracer)


@contextmanager
def span(name: str, subject: str = "") -> Iterator[TraceSpan]:
    """Records the block as a span below the current one. Log lines in it have ``trace_id`` and ``span_id``.

    ``subject``: what the work is about, like the name of a dataset; logged at the beginning, for people of this
    machine.
    """
    tracer, parent = _TRACER.get(), _CURRENT.get()
    if tracer is None:
        yield TraceSpan(name, b"", b"", b"", NEVER)
        return
    if name not in NAMES:
        raise KeyError(name)
    trace_id = secrets.token_bytes(16) if parent is None else parent.trace_id
    made = TraceSpan(
        name, trace_id, secrets.token_bytes(8), b"" if parent is None else parent.span_id, tracer.clock.now()
    )
    token = _CURRENT.set(made)
    try:
        with structlog.contextvars.bound_contextvars(trace_id=made.trace_id.hex(), span_id=made.span_id.hex()):
            if subject:
                structlog.get_logger().info("trace begun", span=name, subject=subject)
            yield made
    except BaseException as error:
        _note_failure(made, error)
        raise
    finally:
        _CURRENT.reset(token)
        made.ended = tracer.clock.now()
        tracer.take(made)


def _note_failure(made: TraceSpan, error: BaseException) -> None:
    """Records only the rule of the failure: a message may quote rows, names and addresses."""
    if isinstance(error, trio.Cancelled):
        made.note("odfd.cancelled", True)
        return
    made.failed = True
    fault = sole_fault(error) if isinstance(error, Exception) else None
    made.note("odfd.fault", fault_word(fault) if fault is not None else type(error).__name__)


def fault_word(fault: Fault) -> str:
    """Returns the rule of a fault, or the name of its class if it has none."""
    return fault.rule or type(fault).__name__

"""Contains unexpected errors that a peer provokes: one stream is lost and logged, and other peers are not affected.

This is the only place in the driver that catches unknown exceptions.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVarTuple

import structlog

from chain.errors import Fault
from p2p.errors import PeerFault

Args = TypeVarTuple("Args")
_LOG = structlog.get_logger("p2p.driver")


async def contain(work: Callable[[*Args], Awaitable[object]], *args: *Args) -> None:
    """Runs ``work`` to its end. Logs faults of the peer as debug, other faults as warnings, bugs as errors."""
    try:
        await work(*args)
    except PeerFault as fault:
        _LOG.debug("peer fault", peer=fault.peer, fault=str(fault), rule=fault.rule)
    except Fault as fault:
        _LOG.warning("fault while serving a peer", fault=str(fault), rule=fault.rule, hint=fault.hint)
    except Exception:  # noqa: BLE001 - a supervisor: the reason is in the module's docstring
        _LOG.exception("a bug ended work for a peer", work=getattr(work, "__qualname__", str(work)))

"""Declares the limits of calls to an engine. Imports no gRPC, which takes a tenth of a second."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CallLimits:
    """How long a caller waits and how many wait at once."""

    work: float = 3600.0
    """Seconds for a transform, an ingest or a raw query."""
    question: float = 120.0
    """Seconds for identity and validation: a cold Spark needs ten of them."""
    calls: int = 32
    """Calls in flight; each holds a thread. As many as the service lets wait."""

"""Says whether the daemon is ready: all parts have started, and nobody has asked it to stop."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Readiness:
    """Of one daemon; its tree of parts sets it."""

    started: bool = False
    stopping: bool = False

    @property
    def is_ready(self) -> bool:
        return self.started and not self.stopping

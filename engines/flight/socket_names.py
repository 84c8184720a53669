"""Defines names that the process of Flight SQL and the node have in common. Pure."""

from __future__ import annotations

from typing import Final

ASKED: Final = "node.sock"
"""Name of the node's socket."""
SERVED: Final = "flight.sock"
"""Name of the Flight SQL process's socket."""
READY: Final = b"ready\n"

"""Defines names that the process of Flight SQL and the node have agreed on. Pure."""

from __future__ import annotations

from typing import Final

ASKED: Final = "node.sock"
"""The node's socket."""
SERVED: Final = "flight.sock"
"""The process's socket."""
READY: Final = b"ready\n"

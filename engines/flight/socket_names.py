"""Defines names that the process of Flight SQL and the node have agreed on. Pure."""

from __future__ import annotations

from typing import Final

ASKED: Final = "node.sock"
"""Where the node answers."""
SERVED: Final = "flight.sock"
"""Where the process serves."""
READY: Final = b"ready\n"

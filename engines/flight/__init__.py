"""Serves Arrow Flight SQL in a process of its own, without data, keys or network; it requests rows from the node."""

from __future__ import annotations

from typing import Final

ASKED: Final = "node.sock"
"""Name of the node's socket."""
SERVED: Final = "flight.sock"
"""Name of the Flight SQL process's socket."""
READY: Final = b"ready\n"
"""What the process writes when it serves."""

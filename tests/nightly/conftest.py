from __future__ import annotations

from worlds.daemons import golden, make_daemon

__all__ = ["golden", "make_daemon"]

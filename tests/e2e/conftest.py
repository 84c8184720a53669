"""Daemons of their own, as people run them."""

from __future__ import annotations

from worlds.daemons import golden, make_daemon, make_with_spark

__all__ = ["golden", "make_daemon", "make_with_spark"]

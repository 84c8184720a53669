"""Daemons of their own, as people run them."""

from __future__ import annotations

from worlds.daemons import forking, golden, make_daemon, make_with_spark, shared_spark

__all__ = ["forking", "golden", "make_daemon", "make_with_spark", "shared_spark"]

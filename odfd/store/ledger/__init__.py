"""Stores statements and decisions: the append-only log, its live set, and tables by kind of statement."""

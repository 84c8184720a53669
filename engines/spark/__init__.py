"""Implements the Spark engine: a process that reads slices, runs SQL and writes slices, and never sees a chain."""

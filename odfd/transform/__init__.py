"""Derives datasets: plans a transaction as a value, executes it on an engine, commits it exactly once, replays it."""

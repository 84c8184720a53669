"""Serves Arrow Flight SQL in a process of its own, without data, keys or network; it requests rows from the node."""

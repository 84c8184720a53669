"""Speaks Arrow Flight SQL in a process of its own: without data, keys or network; it asks the node for rows."""

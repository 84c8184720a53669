"""Operates flows, and runs what their scheduler decides."""

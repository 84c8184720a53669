"""Enforces access at one point: says who asks, and what of each operation they get (ADR 49)."""

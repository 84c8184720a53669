"""Flows: what is pulled by itself, when, and what became of it."""

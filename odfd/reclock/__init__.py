"""Ingests one source into a collection by several instances at once, which write the same blocks (reclocking)."""

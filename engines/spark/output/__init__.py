"""Writes results as the rows of a slice: exact types, final order, system columns; large ones by sorted runs."""

"""Decides which slices a query reads: names, cuts, folds, and how far the data may be relied on. Parses no SQL."""

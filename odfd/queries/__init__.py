"""Decides which slices a query reads: names, cuts, folds, and how far what is read may be relied on. No SQL."""

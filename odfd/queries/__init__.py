"""Which slices a query reads: names to datasets, cuts, folds, and how far what is read may be relied on. No SQL."""

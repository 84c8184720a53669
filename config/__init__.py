"""Settings as values: typed, with every mistake reported at once. Knows nobody, uses the standard library only."""

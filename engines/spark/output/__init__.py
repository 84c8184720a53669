"""Results as the rows of a slice: exact types, the final order, system columns; large ones through sorted runs."""

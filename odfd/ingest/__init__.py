"""Data into root datasets: fetched or pushed, prepared, given to an engine, committed exactly once."""

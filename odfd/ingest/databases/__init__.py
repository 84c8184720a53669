"""Runs the query of a source in a process of its own, and writes the rows as a Parquet file."""

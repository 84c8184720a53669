"""Runs the query of a source in a separate process, and writes the rows as a Parquet file."""

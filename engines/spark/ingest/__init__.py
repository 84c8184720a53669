"""Ingests with Spark: turns source files into the next slice of a source dataset.

Spark schedules, retries and scales out; Arrow parses inside its workers; SQL and joins are Spark's. Where only the
positions of rows are needed, the rows themselves do not pass through Spark, so they keep the exact types of the format.
"""

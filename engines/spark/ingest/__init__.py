"""Ingests with Spark: turns source files into the next slice of a root dataset.

Spark schedules, retries and scales out; Arrow parses inside its workers; SQL and joins are Spark's; rows keep the exact
types of the format because they never travel through Spark where only their places are asked for.
"""

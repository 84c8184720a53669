"""Brings data into source datasets: fetches or receives it, has an engine read it, and commits it exactly once."""

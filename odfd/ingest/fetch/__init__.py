"""Fetches data from sources, and determines whether a source has anything new."""

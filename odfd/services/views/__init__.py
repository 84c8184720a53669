"""Computes the views of datasets, and caches them until something that they depend on changes."""

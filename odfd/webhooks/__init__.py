"""Tells URLs that people declare what becomes of datasets."""

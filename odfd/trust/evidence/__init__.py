"""Writes, stores, reads and compares bundles of evidence, which prove a mismatch to others."""

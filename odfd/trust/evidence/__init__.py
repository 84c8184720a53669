"""Handles bundles of evidence, which prove a mismatch to others: writes, stores, reads and compares them."""

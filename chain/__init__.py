"""Reads, checks, hashes and stores Open Data Fabric data: blocks, events, identities, append rules and slices.

Knows nobody. Everything but ``chain.store`` and ``chain.data.parquet`` is pure and synchronous.
"""

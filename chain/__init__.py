"""Reads, checks, hashes and stores Open Data Fabric data: blocks, events, identities, append rules and slices.

Imports no other package of the node. Everything but ``chain.store`` and ``chain.data.parquet`` is pure and synchronous.
"""

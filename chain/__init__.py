"""Open Data Fabric as data: blocks, events, identities, hashes, rules, slices and the store that keeps them.

Knows nobody. Everything but ``chain.store`` and ``chain.data.parquet`` is pure and synchronous.
"""

"""Decodes blocks, schemas and manifests and encodes them, under limits; layouts are derived from ``chain.model``."""

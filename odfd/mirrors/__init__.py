"""Mirrors: copies of others' datasets that this node keeps up to date, verified block by block."""

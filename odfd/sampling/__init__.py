"""Inspects a file before it is ingested: its format, how it would be read, and a manifest for that.

Runs in the person's own process, with no daemon. Knows read steps and the parsers of the engine; no datasets.
"""

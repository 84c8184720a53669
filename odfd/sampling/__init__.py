"""Inspects a file before it is ingested: guesses its format, a read step, and a manifest for it.

Runs in the person's own process, with no daemon. Knows read steps and the parsers of the engine; no datasets.
"""

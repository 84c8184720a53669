"""Inspects a file before it is ingested: guesses its format, a read step, and a manifest for it.

Runs in the user's own process, without a daemon. Uses read steps and the parsers of the engine, but no datasets.
"""

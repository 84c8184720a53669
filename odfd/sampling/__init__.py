"""Looks at a file of a person who wants to take it in: what it is, how it would be read, and the manifest that says so.

Runs in the person's own process, with no daemon. Knows read steps and the parsers of the engine; no datasets.
"""

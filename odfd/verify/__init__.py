"""Verifies chains and their data: hashes, links, append rules, and objects against their blocks."""

"""Keeps mirrors, copies of others' datasets, up to date, and verifies them block by block."""

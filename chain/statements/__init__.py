"""Encodes and verifies signed statements: heads, authorities, attestations, and the trees that heads commit to.

Says who spoke and what was said; whether it is believed is decided elsewhere. Pure: time and keys are arguments.
"""

"""Encodes and verifies signed statements: heads, authorities, attestations, and the trees that heads commit to.

Establishes who signed which content; other packages decide whether it is believed. Pure: time and keys are arguments.
"""

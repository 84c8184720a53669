"""Traces records to their origin: finds the block of a record, runs the engine's provenance, and finds its source.

Reads chains and objects; changes nothing.
"""

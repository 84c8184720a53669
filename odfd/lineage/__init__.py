"""Traces records to their origin: finds the block that holds one, asks an engine about it, and finds its source.

Reads chains and objects; changes nothing.
"""

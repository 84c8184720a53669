"""Drives replication: feeds protocol machines from streams, clocks and the node, and performs their effects.

This layer owns streams, timers and bounds; it decides nothing that a machine or a port of ``p2p/ports.py`` could
decide.
"""

"""Drives replication: feeds protocol machines from streams, clocks and the node, and performs their effects.

It owns streams, timers and bounds; it decides nothing that a machine or a port behind ``p2p/ports.py`` could decide.
"""

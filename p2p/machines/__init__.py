"""Implements replication protocols sans-IO: inputs and ``now`` in, effects out; no sockets, clocks or randomness.

``now`` is a monotonic clock in seconds. Inputs and effects are closed unions of frozen values.
"""

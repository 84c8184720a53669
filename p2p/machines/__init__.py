"""Protocol machines of replication: inputs and ``now`` in, effects out. No sockets, clocks, chance or truth in here.

``now`` is a monotonic clock in seconds. Inputs and effects are closed unions of frozen values.
"""

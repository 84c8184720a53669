"""Runs planned transactions on engines: the contract, its client, the sandbox, and the Spark engine."""

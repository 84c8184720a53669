"""Engines: what turns a planned transaction into rows. The contract, its client, the sandbox, and the Spark engine."""

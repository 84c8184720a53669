"""Serves Arrow Flight SQL: accepts connections, and answers requests of the process that implements the protocol."""

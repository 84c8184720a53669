"""Serves Arrow Flight SQL: accepts connections, and answers the process that implements it."""

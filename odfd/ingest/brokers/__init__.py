"""Reads from message brokers in a separate process with bounded memory."""

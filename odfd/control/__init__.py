"""Defines the control API of the node: its values, its HTTP server on a unix socket, and its client."""

"""The control API of the node: its values, the ports behind it, its HTTP server on a unix socket, and its client."""

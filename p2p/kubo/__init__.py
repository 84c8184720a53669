"""Talks to a Kubo, the IPFS daemon that an operator runs beside the node, over its HTTP RPC."""

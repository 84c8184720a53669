"""Reads logs of chains of the Ethereum Virtual Machine: requests to a node, and the decoding of its answers."""

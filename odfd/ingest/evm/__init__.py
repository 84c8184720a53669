"""Reads logs of chains of the Ethereum Virtual Machine: what is asked of a node, and what its answers mean."""

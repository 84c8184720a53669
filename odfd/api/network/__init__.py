"""Manages mirrors, networks and peers, and serves the node's datasets to its HTTP site."""

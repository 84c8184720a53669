"""Manages mirrors, networks and peers; searches, and serves the node's datasets to its HTTP site."""

"""Manages mirrors, networks and peers, and gives the node's HTTP site its datasets."""

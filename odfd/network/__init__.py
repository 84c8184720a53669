"""Connects a node to others: what it serves, which statements it takes in, and which network it has joined."""

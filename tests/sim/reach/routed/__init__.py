"""Worlds of the machines that decide how a node is reached: each is a seed, and runs without a clock or a socket."""

"""Stores chains and objects: the ports and their implementations."""

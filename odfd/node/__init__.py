"""Assembles a node: makes every part, connects the parts, and lists the tasks that must run."""

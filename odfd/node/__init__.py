"""Puts a node together: makes every part, joins them, and lists what must run."""

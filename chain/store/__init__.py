"""Stores chains and objects: the interfaces, and their implementations in SQLite and folders."""

"""Keeps all that is on disk: the state directory, and the tables, objects, keys and logs in it. It decides nothing."""

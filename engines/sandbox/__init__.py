"""Isolates processes that run strangers' queries, at several levels; each is tried before it is relied on."""

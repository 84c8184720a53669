"""Isolates processes that run untrusted queries, at several levels; each is tested before it is used."""

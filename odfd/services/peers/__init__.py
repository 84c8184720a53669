"""Speaks with other nodes: statements that are kept and passed on, data that is served, invitations."""

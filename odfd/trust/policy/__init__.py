"""Defines policy, the facts that must hold before data is relied on:
settings, networks, profiles and witness quorums."""

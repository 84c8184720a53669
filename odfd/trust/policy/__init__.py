"""Defines policy: what must hold before data is relied on, by settings, networks, profiles and witness quorums."""

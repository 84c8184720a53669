"""Mirrors: standing wishes to hold someone's dataset, and how it gets here, verified before it counts."""

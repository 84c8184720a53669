"""Manages renditions of a collection: which is active when, how one hands over to the next, and what readers get."""

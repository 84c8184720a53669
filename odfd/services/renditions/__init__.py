"""Hands datasets over from one rendition to the next, and lets mirrors follow."""

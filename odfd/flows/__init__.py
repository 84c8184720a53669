"""Decides what is pulled without being asked and when, and records what became of it."""

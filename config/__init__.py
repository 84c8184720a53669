"""Loads settings as typed values, and reports every mistake at once. Uses the standard library only."""

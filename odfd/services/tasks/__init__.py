"""Performs the tasks that flows and callers start, by their kind."""

"""Performs the tasks that flows and people start, by their kind."""

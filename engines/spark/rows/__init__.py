"""Handles rows as Arrow columns, without queries: slices, order, event times, changelogs, ticks of a table."""

"""Handles rows as Arrow columns, without queries: reading slices, order, event times, changelogs, ticks of a table."""

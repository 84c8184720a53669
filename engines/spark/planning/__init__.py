"""Decides what one transaction reads, emits and keeps, from facts about slices and event times. Runs no query."""

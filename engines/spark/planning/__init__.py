"""Decides what one transaction reads, settles and keeps, from facts about slices and event times. Runs no query."""

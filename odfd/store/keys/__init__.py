"""Keeps the node's keys and the journal of what each has signed, so that no key signs two contradicting statements."""

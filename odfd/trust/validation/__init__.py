"""Repeats the work of others and compares:
re-execution of transforms, observation of sources, re-checks of evidence."""

"""Runs the daemon process ``odfd``: command line, start, signals, and orderly stop."""

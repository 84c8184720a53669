"""Manages what a node keeps on disk: the state directory, crash recovery, settings by component."""

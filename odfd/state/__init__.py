"""Manages a node's files: the state directory, crash recovery, settings by component."""

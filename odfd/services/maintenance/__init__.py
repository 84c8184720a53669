"""Maintains the node itself: status, doctor, backups, garbage collection, the engine, what the node depends on."""

"""Manages the datasets of a node: names, creation from snapshots, reading of blocks and rows, visibility."""

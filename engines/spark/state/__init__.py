"""Stores the state of a transform between transactions: the checkpoint, its tables, their buckets, and files."""

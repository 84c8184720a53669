"""Keeps the state of a transform between transactions: the checkpoint, the tables behind it, their buckets, files."""

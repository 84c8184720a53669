"""What a transform keeps between its transactions: the checkpoint, the tables behind it, their buckets, their files."""

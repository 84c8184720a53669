"""Runs what computes: the engine of transforms, the processes of queries, and what ingests and transforms need."""

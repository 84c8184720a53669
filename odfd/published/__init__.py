"""Reads datasets that are published as files, on IPFS or on the web, as if from one more peer."""

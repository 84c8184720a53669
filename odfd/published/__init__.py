"""Datasets that lie somewhere as files, on IPFS or on the web: read from there as from one more peer."""

"""Publishes datasets to IPFS in the ODF layout, and mirrors datasets from there, through the operator's Kubo."""

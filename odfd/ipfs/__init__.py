"""Datasets on IPFS: published as a folder in the ODF layout, and mirrored from one, by way of the operator's Kubo."""

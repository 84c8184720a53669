"""Datasets out of the store into folders of the ODF layout, and in again: bytes as they are, both ways."""

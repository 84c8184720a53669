"""Exports datasets to directories in the ODF layout and imports them, without changing a byte."""

"""Decodes bytes and text to values of the format and encodes them, under limits; derived from ``chain.model``."""

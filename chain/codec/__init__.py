"""Bytes and text to values of the format and back, under limits; both derived from the classes of ``chain.model``."""

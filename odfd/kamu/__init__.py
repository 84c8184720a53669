"""Answers questions over HTTP with the paths, fields and formats of a kamu node."""

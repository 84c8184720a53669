"""Finds the input rows that a record of a transform's output was made of, and the reasons.

``tracing`` sends a column of lineage through the user's own plan (``catalyst.expressions`` builds, ``reasons`` tells of
operators), ``witnesses`` reads it; ``question`` plans the transaction again, and ``derive`` and ``table_mode`` find the
record in the three modes. ``docs/provenance.md`` defines what is a witness.
"""

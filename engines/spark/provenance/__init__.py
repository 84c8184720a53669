"""Finds the input rows from which a record of a transform's output was made, and the reasons.

``row_lineage`` adds a column of lineage to the user's own plan (``catalyst.expressions`` builds it), decodes it and
describes operators; ``question`` plans the transaction again, and ``derive`` and ``table_mode`` find the record in the
three modes. ``docs/explanation/provenance.md`` defines which rows contribute.
"""

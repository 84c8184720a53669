"""Which rows of the inputs a record of a transform's output was made of, and why of these.

``tracing`` sends a column of lineage through the user's own plan (``catalyst`` builds, ``reasons`` tells of operators),
``witnesses`` reads it; ``ground`` plans the transaction again, and ``spoken``, ``settled`` and ``changing`` find the
record in the three modes. ``docs/provenance.md`` defines what is a witness.
"""

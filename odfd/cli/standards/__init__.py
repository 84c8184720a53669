"""Describes exported rows and transactions in documents of other standards: Frictionless, Croissant, OpenLineage."""

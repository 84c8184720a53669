"""Bundles that show a mismatch to others: written, kept under quotas, read under limits, compared by rows."""

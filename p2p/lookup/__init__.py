"""Looks up who serves a dataset in networks that are too large for one node's directory (ADR 59). Sans-IO."""

"""Searches for the nodes that serve a dataset in networks too large for one node's directory (ADR 59). Sans-IO."""

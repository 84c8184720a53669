"""Cosignatures: those that this node makes of trees of others, and those that it asks public witnesses for."""

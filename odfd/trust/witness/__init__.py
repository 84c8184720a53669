"""Handles cosignatures: those that this node makes of others' trees, and those that it requests of public witnesses."""

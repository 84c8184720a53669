"""Handles cosignatures: those that this node makes on others' trees,
and those that it requests from public witnesses."""

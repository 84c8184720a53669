"""Runs the background work of a node: head signing, cosigning, publication, repair, collection, the engine."""

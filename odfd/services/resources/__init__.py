"""Reads, plans, applies and shows resources, and brings the node to the state that they declare."""

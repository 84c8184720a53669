"""Reads, plans, applies and shows resources: from manifests to the desired state, and from there to what is."""

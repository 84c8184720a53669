"""Reads, plans, applies and shows resources: manifests into what a person wants, and that into what is."""

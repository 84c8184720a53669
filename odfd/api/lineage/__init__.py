"""Traces datasets and records to what they were made of."""

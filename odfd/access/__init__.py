"""Decides who may do what, by accounts, their callers and their relations (ADR 49). Pure."""

"""Implements the API's operations on datasets: list, show, ingest, pull, export, verify, rewrite, publish."""

"""Reads files from web servers, in the ODF layout over HTTP."""

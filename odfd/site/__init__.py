"""Datasets given to anybody over HTTP, in the ODF layout: what kamu, a browser or another odfd reads."""

"""Serves datasets over HTTP in the ODF layout, to kamu, browsers and other nodes."""

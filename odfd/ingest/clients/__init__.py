"""Reads sources that need a client of their own: each module is a process with bounded memory for one request."""

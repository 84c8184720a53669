"""Files on web servers: the ODF layout over HTTP."""

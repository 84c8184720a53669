"""Builds what people install: the wheel (``make wheel``) and the Debian package (``make deb``). Not shipped itself."""

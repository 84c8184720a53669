"""Implements commands on files without a daemon; the only part of the command line that imports ``chain``."""

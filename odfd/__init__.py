"""The daemon and its hand: services, control API, command line, and the wiring that joins all rooms."""

__version__ = "0.1.0"

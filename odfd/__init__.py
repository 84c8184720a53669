"""The daemon and its hand: services, control API, command line, and the wiring that joins all rooms."""

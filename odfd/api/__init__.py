"""Implements the operations of the control API: each service implements a port of ``odfd.control.ports``."""

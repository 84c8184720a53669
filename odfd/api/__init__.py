"""The operations behind the control API: each implements a port of ``odfd.control.ports``."""

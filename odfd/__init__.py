"""Runs the node: daemon ``odfd``, control API, command line ``odfctl``, and all that connects the other packages."""

__version__ = "0.1.0"

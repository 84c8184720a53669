"""Serves a page about this node to a browser on this machine: its files, sessions, and the API behind them."""

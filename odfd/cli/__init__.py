"""Implements ``odfctl``: talks to the daemon over its control API, and imports only what a command needs."""

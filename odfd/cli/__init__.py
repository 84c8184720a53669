"""Implements ``odfctl``: talks to the daemon over its control API, and imports only what a command needs."""

from __future__ import annotations

import gc


def start() -> int:
    """Runs ``odfctl`` and returns its exit code. Garbage collection is off: it would take as long as many commands."""
    gc.disable()
    from odfd.cli.main import main

    return main()

"""Implements ``odfctl``: talks to the daemon over its control API, and imports only what a command needs."""

from __future__ import annotations

import gc


def start() -> int:
    """Run ``odfctl``; its exit code. What is loaded stays until the end: to look through it for garbage, in between and
    at the end, takes as long as many answers.
    """
    gc.disable()
    from odfd.cli.main import main

    return main()

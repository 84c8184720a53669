"""The command line of ``tether``, whose text goes in as an argument."""

from __future__ import annotations

from pathlib import Path
from typing import Final

TETHER: Final = Path(__file__).with_name("tether.py")


def tethered(python: str, processes: int | None, *, hold: bool = False) -> tuple[str, ...]:
    """What to put before a command that runs inside: see ``tether``."""
    bound = "-" if processes is None else str(processes)
    return (python, "-I", "-S", "-c", TETHER.read_text(encoding="utf-8"), bound, "hold" if hold else "-")

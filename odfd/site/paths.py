"""Tells the paths of questions from those of the layout of datasets. Pure."""

from __future__ import annotations

from typing import Final

OWN: Final = "v1"
"""Below it stands what our client asks."""


def is_question(path: str) -> bool:
    """Whether a path is a question, in kamu's words or in those of our client."""
    first, _, rest = path.strip("/").partition("/")
    if first == OWN and rest.partition("/")[0] in ("query", "datasets"):
        return True
    return (first in ("query", "verify") and not rest) or first == "odata" or rest in ("tail", "metadata")

"""Tells the paths of questions from those of the layout of datasets. Pure."""

from __future__ import annotations


def is_question(path: str) -> bool:
    """Whether a path is a question in kamu's words."""
    first, _, rest = path.strip("/").partition("/")
    return (first in ("query", "verify") and not rest) or first == "odata" or rest in ("tail", "metadata")

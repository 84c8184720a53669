"""Collects mistakes in settings, each with its place. ``load`` and ``check`` make them; the program shows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake: where, what, and what to write instead."""

    place: str
    """``odfd.toml:14``, ``environment ODFD_P2P_LISTEN``, ``--socket``."""
    message: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.place}: {self.message}" + (f"  ({self.hint})" if self.hint else "")


class ConfigError(Exception):
    """Settings that cannot be used, with every reason."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)

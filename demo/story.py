"""Prints acts, steps and claims on the terminal. A claim is printed only after its check succeeded."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field

_BOLD, _DIM, _GREEN, _RED, _PLAIN = "\033[1m", "\033[2m", "\033[32m", "\033[31m", "\033[0m"


@dataclass
class Claim:
    """A checked claim, and its checker."""

    text: str
    by: str
    seconds: float


@dataclass
class Story:
    """Prints the story, and records its claims."""

    began: float = field(default_factory=time.monotonic)
    claims: list[Claim] = field(default_factory=list)
    colour: bool = field(default_factory=sys.stdout.isatty)

    def _dress(self, text: str, code: str) -> str:
        return f"{code}{text}{_PLAIN}" if self.colour else text

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def act(self, title: str) -> None:
        print(f"\n{self._dress(title, _BOLD)}", flush=True)

    def say(self, text: str) -> None:
        print(f"  {self._dress(f'{self.seconds:5.1f} s', _DIM)}  {text}", flush=True)

    def claim(self, text: str, by: str) -> None:
        """Prints a claim. Call this only after its check."""
        self.claims.append(Claim(text, by, self.seconds))
        mark = self._dress("ok", _GREEN)
        print(
            f"  {self._dress(f'{self.seconds:5.1f} s', _DIM)}  {mark}  {text}  {self._dress(f'[{by}]', _DIM)}",
            flush=True,
        )

    def fail(self, text: str) -> None:
        print(f"\n  {self._dress('not shown', _RED)}  {text}", file=sys.stderr, flush=True)

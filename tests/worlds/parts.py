"""Parts of a machine that some tests need: which are here, and whether a skip for want of one is allowed."""

from __future__ import annotations

import re
import shutil
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

TREE: Final = Path(__file__).parents[2]
TABLE: Final = TREE / "tests" / "parts.toml"
ALL: Final = "all"
"""All that ``make test`` needs."""
NIGHTLY: Final = "nightly"
"""All, with what only ``make nightly`` needs."""


@dataclass(frozen=True)
class Part:
    """One part. ``needs``: programs that its recipe takes; ``make``: the target of the Makefile that brings it."""

    name: str
    reason: re.Pattern[str]
    carries: str
    programs: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    apt: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    make: str = ""
    nightly: bool = False

    def is_here(self) -> bool:
        return all(map(shutil.which, self.programs)) and all((TREE / file).exists() for file in self.files)

    @property
    def source(self) -> str:
        """Where it comes from, in words."""
        ways = [f"Debian: {' '.join(self.apt)}"] * bool(self.apt) + [f"make {self.make}"] * bool(self.make)
        return ", ".join(ways)


@dataclass(frozen=True)
class Parts:
    """The table of ``tests/parts.toml``."""

    parts: tuple[Part, ...]
    allowed: Mapping[str, re.Pattern[str]]

    def select(self, names: Collection[str]) -> tuple[Part, ...]:
        """Returns the parts of these names, of which ``all`` and ``nightly`` stand for many. Raises ValueError if one
        is unknown."""
        known = {part.name for part in self.parts} | {ALL, NIGHTLY}
        if unknown := sorted(set(names) - known):
            raise ValueError(f"no part is called {', '.join(unknown)}: tests/parts.toml has {', '.join(sorted(known))}")
        return tuple(
            part for part in self.parts if part.name in names or NIGHTLY in names or (ALL in names and not part.nightly)
        )

    def missing(self, names: Collection[str]) -> list[Part]:
        """Returns the selected parts that are not here."""
        return [part for part in self.select(names) if not part.is_here()]

    def blame(self, reason: str, names: Collection[str]) -> str | None:
        """Returns why a skip for ``reason`` fails where these parts are required; ``None`` if it does not."""
        if any(pattern.search(reason) for pattern in self.allowed.values()):
            return None
        wanting = [part for part in self.parts if part.reason.search(reason)]
        if not wanting:
            return "no row of tests/parts.toml has this reason"
        required = {part.name for part in self.select(names)}
        named = [part.name for part in wanting if part.name in required]
        return f"{' or '.join(named)} is required" if named else None


def read_parts(text: str) -> Parts:
    table: dict[str, dict[str, Any]] = tomllib.loads(text)
    allowed = table.pop("allowed")
    return Parts(
        tuple(_to_part(name, row) for name, row in table.items()),
        {name: re.compile(reason) for name, reason in allowed.items()},
    )


def load_parts() -> Parts:
    return read_parts(TABLE.read_text(encoding="utf-8"))


def _to_part(name: str, row: dict[str, Any]) -> Part:
    row |= {key: tuple(row.get(key, ())) for key in ("programs", "files", "apt", "needs")}
    return Part(name=name, reason=re.compile(row.pop("reason"), re.IGNORECASE), **row)


def describe(parts: Iterable[Part]) -> str:
    """Returns a line for each part: its name, what it carries, where it comes from."""
    return "\n".join(f"  {part.name}: {part.carries} ({part.source})" for part in parts)

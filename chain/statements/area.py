"""Defines areas on Earth as cards state them: a box of longitudes and latitudes, in WGS 84, as text ``W,S,E,N``.

Statements have no fractions, so the text itself is signed; each area has one text, and a card with another is invalid.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from chain.errors import Invalid

_DEGREE: Final = 1_000_000
_NUMBER: Final = re.compile(r"(-?)(\d{1,3})(?:\.(\d{1,6}))?", re.ASCII)
_HINT: Final = "west,south,east,north in degrees, with at most six decimals: 15.35,47.00,15.54,47.14"


class Area(NamedTuple):
    """A box, in millionths of a degree. ``west`` beyond ``east``: it crosses the 180th meridian, as in GeoJSON."""

    west: int
    south: int
    east: int
    north: int

    @classmethod
    def parse(cls, text: str) -> Area:
        """Reads ``W,S,E,N``. Raises Invalid."""
        found = [_NUMBER.fullmatch(part.strip()) for part in text[:100].split(",")]
        numbers = [each for each in found if each is not None]
        if len(numbers) != len(found) or len(found) != len(cls._fields) or len(text) > 100:
            raise Invalid(f"not an area: {text[:60]!r}", rule="card-area", hint=_HINT)
        area = cls(*map(_micros, numbers))
        if max(abs(area.west), abs(area.east)) > 180 * _DEGREE or max(abs(area.south), abs(area.north)) > 90 * _DEGREE:
            raise Invalid(
                f"the area {text[:60]} is not on Earth",
                rule="card-area",
                hint="longitudes lie within -180 to 180, latitudes within -90 to 90, and longitudes come first",
            )
        if area.south > area.north:
            raise Invalid(f"the south of the area {text[:60]} is beyond its north", rule="card-area", hint=_HINT)
        return area

    def __str__(self) -> str:
        return ",".join(map(_text, self))

    @property
    def degrees(self) -> tuple[float, float, float, float]:
        west, south, east, north = (each / _DEGREE for each in self)
        return west, south, east, north

    @property
    def is_point(self) -> bool:
        return self.west == self.east and self.south == self.north

    @property
    def parts(self) -> tuple[Area, ...]:
        """The boxes of which it consists: two where it crosses the 180th meridian."""
        if self.west <= self.east:
            return (self,)
        return self._replace(east=180 * _DEGREE), self._replace(west=-180 * _DEGREE)


def _micros(number: re.Match[str]) -> int:
    size = int(number[2]) * _DEGREE + int((number[3] or "").ljust(6, "0"))
    return -size if number[1] else size


def _text(micros: int) -> str:
    whole, rest = divmod(abs(micros), _DEGREE)
    decimals = f"{rest:06}".rstrip("0")
    return ("-" if micros < 0 else "") + str(whole) + (f".{decimals}" if decimals else "")

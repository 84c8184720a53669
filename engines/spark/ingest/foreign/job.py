"""Declares requests and responses of a converting process, and sets its limits."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from chain.errors import Invalid
from chain.model.read_options import ReadOptions

MEMORY: Final = 2 << 30
"""Most bytes of private memory of the process."""
ANSWER: Final = "told.json"
"""Name of the file with the answer, in the folder of the conversion."""
RULE: Final = "read-foreign"


class Conversion(msgspec.Struct, frozen=True, kw_only=True):
    """Converts ``path`` of kind ``kind`` to ``target``, of at most ``limit`` bytes."""

    kind: str
    path: str
    name: str
    """The file's name in messages."""
    target: str
    folder: str
    """Folder for intermediate files and the response."""
    limit: int
    ratio: int
    options: ReadOptions
    sub_path: str | None = None

    @property
    def source(self) -> Path:
        return Path(self.path)


class ConversionResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The response: remarks for people, or a fault."""

    remarks: tuple[str, ...] = ()
    message: str = ""
    rule: str = ""
    hint: str = ""
    place: str = ""

    @classmethod
    def of(cls, fault: Invalid) -> ConversionResult:
        return cls(message=fault.message, rule=fault.rule, hint=fault.hint, place=fault.place)

    def fault(self) -> Invalid | None:
        return Invalid(self.message, rule=self.rule, hint=self.hint, place=self.place) if self.message else None


def one_of(wanted: str | None, names: list[str], kind: str, option: str, place: str) -> str:
    """Returns the requested part of a file, or the only one if none is requested. Raises Invalid."""
    if wanted in names and wanted is not None:
        return wanted
    listed = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
    if wanted is None and len(names) == 1:
        return names[0]
    what = f"no {kind} {wanted!r}" if wanted is not None else f"{len(names)} {kind}s"
    hint = "check that it is the right file"
    if names:
        hint = f"say which, in the read step: {option}: NAME (there are {listed})"
    raise Invalid(f"{what} in {place}", rule="read-part", hint=hint, place=place)

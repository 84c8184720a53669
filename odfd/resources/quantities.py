"""Parses quantities that manifests and settings have as text. Pure."""

from __future__ import annotations

import re
from typing import Final

from chain.errors import Invalid

SIZE: Final = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)(B|[kKMGTP]i?B)\Z")
_POWERS: Final = "kMGTP"


def parse_size(text: str) -> int:
    """Returns the bytes that a text such as ``10GiB``, ``1.5GB`` or ``500B`` states. Raises Invalid."""
    found = SIZE.match(text)
    if found is None:
        raise Invalid(f"{text[:60]!r} is not a size", rule="size", hint="write it like 500MB or 10GiB")
    unit = found[2]
    power = 0 if unit == "B" else _POWERS.index(unit[0].replace("K", "k")) + 1
    return int(float(found[1]) * (1024 if "i" in unit else 1000) ** power)

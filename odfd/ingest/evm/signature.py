"""Parses the signature of an event as Solidity writes it. Pure, but for Keccak, whose library is an extra."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from chain.errors import Invalid

RULE: Final = "evm-signature"
MAX_INDEXED: Final = 3
_MAX_PARAMETERS: Final = 64
_EVENT: Final = re.compile(r"\s*(?:event\s+)?([A-Za-z_$][\w$]*)\s*\((.*)\)\s*;?\s*\Z", re.DOTALL)
_PARAMETER: Final = re.compile(
    r"\s*((?:uint|int)\d*|address|bool|string|bytes(?:[1-9]|[12]\d|3[0-2])?)((?:\[\d{0,4}\]){0,4})"
    r"(\s+indexed)?(?:\s+([A-Za-z_$][\w$]*))?\s*\Z"
)


class EventParameter(NamedTuple):
    """One parameter of an event, with its type."""

    name: str
    kind: str
    """The full name of the type: ``uint256`` for ``uint``."""
    is_indexed: bool

    @property
    def is_hashed(self) -> bool:
        """Whether a topic holds only the hash of the value."""
        return self.kind in ("string", "bytes") or self.kind.endswith("]")


class EventSignature(NamedTuple):
    """The name and the parameters of an event."""

    name: str
    parameters: tuple[EventParameter, ...]

    @property
    def canonical(self) -> str:
        """The text whose hash is the first topic of the event's logs."""
        return f"{self.name}({','.join(each.kind for each in self.parameters)})"


def parse_event(text: str) -> EventSignature:
    """Parses a signature. Raises Invalid."""
    found = _EVENT.match(text)
    if found is None:
        raise _bad(f"no signature of an event: {text.strip()[:200]!r}")
    parts = found[2].split(",") if found[2].strip() else []
    if len(parts) > _MAX_PARAMETERS:
        raise _bad(f"an event has at most {_MAX_PARAMETERS} parameters")
    parameters = tuple(_parameter(part, number) for number, part in enumerate(parts))
    if sum(each.is_indexed for each in parameters) > MAX_INDEXED:
        raise _bad(f"an event has at most {MAX_INDEXED} indexed parameters")
    names = [each.name.casefold() for each in parameters]
    if len(set(names)) < len(names):
        raise _bad("two parameters of the event have one name")
    return EventSignature(found[1], parameters)


def _parameter(text: str, number: int) -> EventParameter:
    found = _PARAMETER.match(text)
    if found is None:
        raise _bad(f"no parameter of an event that is read: {text.strip()[:100]!r}")
    kind = {"uint": "uint256", "int": "int256"}.get(found[1], found[1])
    bits = kind.lstrip("uint") if "int" in kind else "256"
    if bits.startswith("0") or not 8 <= int(bits) <= 256 or int(bits) % 8:
        raise _bad(f"there is no type {found[1]}")
    return EventParameter(found[4] or f"arg{number}", kind + found[2], found[3] is not None)


def _bad(why: str) -> Invalid:
    hint = (
        "write it as Solidity does, without structs: Transfer(address indexed from, address indexed to, uint256 value)"
    )
    return Invalid(why, rule=RULE, hint=hint)


def selector(event: EventSignature) -> str:
    """Returns the first topic of an event, as hexadecimal digits after ``0x``."""
    from Crypto.Hash import keccak

    return "0x" + keccak.new(digest_bits=256, data=event.canonical.encode()).hexdigest()

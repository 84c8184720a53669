"""Detects text that commands a terminal, and makes it safe to show. Pure.

A terminal obeys control characters: they make it show another text than the one that is there, change its title, or
answer as if a person had typed. Invisible characters, and those that turn the direction of text, make a text read as
another.
"""

from __future__ import annotations

import re
from typing import Final

_OBEYED: Final = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters, except tab and newline
    "\u00ad\u061c\u180e\u200b\u200e\u200f\u2028\u2029\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff"  # surrogates, which cannot be encoded
    "\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"  # invisible format characters of scripts
    "\U000e0000-\U000e007f"  # tags
)
"""Characters to replace. Joiners are not among them (U+200C and U+200D): Persian, Hindi and emoji need them."""
_UNSEEN: Final = re.compile(f"[{_OBEYED}]")
_SHOWN: Final = "\N{REPLACEMENT CHARACTER}"


def visible(text: str) -> str:
    """Replaces every character that a terminal obeys or does not show; tabs and newlines stay."""
    return text if _is_plain(text) else _UNSEEN.sub(_SHOWN, text)


def one_line(text: str) -> str:
    return visible(text.replace("\n", " ").replace("\t", " "))


def is_visible(text: str) -> bool:
    return _UNSEEN.search(text) is None


def is_one_line(text: str) -> bool:
    """Whether a text is visible, and has no spaces but single ones between its words."""
    return is_visible(text) and text == " ".join(text.split())


def escaped(text: str) -> str:
    """Escapes such characters in a JSON text, whose meaning and line breaks stay the same."""
    return text if _is_plain(text) else _UNSEEN.sub(_escape, text)


def _is_plain(text: str) -> bool:
    """Whether a text is of printable ASCII and newlines, which is known at once, also of long lists."""
    return text.isascii() and text.replace("\n", "").isprintable()


def _escape(found: re.Match[str]) -> str:
    return "".join(f"\\u{unit:04x}" for unit in _units(found[0]))


def _units(char: str) -> tuple[int, ...]:
    raw = char.encode("utf-16-be", "surrogatepass")
    return tuple(int.from_bytes(raw[at : at + 2], "big") for at in range(0, len(raw), 2))

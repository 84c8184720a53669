"""Writes YAML that our own reader understands as intended: text that looks like a number or a flag is quoted."""

from __future__ import annotations

import re
from typing import Final

import yaml

from chain.terminal_text import is_visible

INTEGER: Final = re.compile(r"[-+]?(?:0|[1-9][0-9]*|0o[0-7]+|0x[0-9a-fA-F]+|0b[01]+)\Z")
"""Integers. Digits after a leading zero are text, as in the reference: a code, not a number."""
FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?\Z")


def render_yaml(plain: object) -> str:
    """Writes dicts, lists and scalars in their order, text of several lines as a block. All characters are visible."""
    text: str = yaml.dump(plain, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
    if not is_visible(text):  # rendered again, with escapes for characters that a terminal would obey
        text = yaml.dump(plain, Dumper=_Dumper, sort_keys=False, width=120)
    return text


class _Dumper(yaml.CSafeDumper):
    """Quotes every text that our own reader would also take for something else."""


def _represent_text(dumper: yaml.CSafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _represent_text)
for _tag, _pattern in (("int", INTEGER), ("float", FLOAT)):
    _Dumper.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", _pattern, list("-+.0123456789"))

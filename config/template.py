"""Writes a first file of settings: every setting with its reason and bounds; what was chosen is in force."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any, Final

from config import schema
from config.render import literal
from config.schema import Key

WIDTH: Final = 110
_HEAD: Final = """\
# Settings of a node of Open Data Fabric. Above each stands what it is for; one that begins with "#" has its default,
# which is shown. `odfd config check` tells every mistake in this file, `odfd config show` what is in force.
"""


def template(chosen: Mapping[str, Any]) -> str:
    """TOML that loads to the defaults but for ``chosen``, values by the names of their keys (``node.name``)."""
    lines = [_HEAD]
    table = ""
    for key in schema.every():
        if key.table != table:
            table = key.table
            lines += [f"[{table}]"]
        lines += [*_comment(key), _line(key, chosen), ""]
    return "\n".join(lines)


def _comment(key: Key) -> list[str]:
    about = key.about
    bounds = [f"{name} {bound:,g}" for name, bound in (("from", about.low), ("to", about.high)) if bound is not None]
    told = about.why + "".join(f"; {each}" for each in (
        f"in {about.unit}" if about.unit else "",
        " ".join(bounds),
        f"one of {', '.join(about.choices)}" if about.choices else "",
        "for example" if key.default is None else "",
    ) if each)  # fmt: skip
    return textwrap.wrap(told, WIDTH, initial_indent="# ", subsequent_indent="# ", break_long_words=False)


def _line(key: Key, chosen: Mapping[str, Any]) -> str:
    name = key.name.rpartition(".")[2]
    if key.name in chosen:
        return f"{name} = {literal(chosen[key.name])}"
    return f"#{name} = {literal(key.about.example if key.default is None else key.default)}"

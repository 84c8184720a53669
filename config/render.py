"""Renders settings as text: the effective file, a new file, and their JSON Schema.

The effective file shows the origin of each value, with secrets masked; a new one shows every setting with its reason
and bounds.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from typing import Any, Final

from config import schema
from config.model import Group, Settings
from config.schema import Key

MASK: Final = "********"
WIDTH: Final = 110
_HEAD: Final = """\
# Settings of a node of Open Data Fabric. The lines above a setting describe it. A setting that begins with "#" has its
# default, which is shown. `odfd config check` reports every mistake in this file; `odfd config show` prints the
# settings in force.
"""


def toml(settings: Settings, origins: Mapping[str, str]) -> str:
    """Renders a file that loads to the same settings (but for secrets), each line with its origin."""
    lines: list[str] = []
    table = ""
    for key in schema.every():
        if key.table != table:
            table = key.table
            lines += ["", f"[{table}]"] if lines else [f"[{table}]"]
        value = schema.get(settings, key.path)
        name = key.name.rpartition(".")[2]
        origin = origins.get(key.name, "default")
        if value is None:
            lines.append(f"# {name} is not said".ljust(44) + f"  # {origin}")
        else:
            lines.append(f"{name} = {literal(_masked(key, value))}".ljust(44) + f"  # {origin}")
    return "\n".join(lines) + "\n"


def plain(settings: Settings) -> dict[str, Any]:
    """Returns nested tables of JSON values, keys as in the file, secrets masked."""
    tree: dict[str, Any] = {}
    for key in schema.every():
        table = tree
        for step in key.table.split("."):
            table = table.setdefault(step, {})
        value = _masked(key, schema.get(settings, key.path))
        if isinstance(value, tuple):
            value = [{"name": one.name, "keys": list(one.keys)} if isinstance(one, Group) else one for one in value]
        table[key.name.rpartition(".")[2]] = value
    return tree


def json_schema() -> dict[str, Any]:
    """Returns the JSON Schema (2020-12) of the file, for editors."""
    root = _object()
    root["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    root["title"] = "odfd.toml"
    for key in schema.every():
        table = root
        for step in key.table.split("."):
            table = table["properties"].setdefault(step, _object())
        table["properties"][key.name.rpartition(".")[2]] = _field(key)
    return root


def _object() -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": {}}


def _field(key: Key) -> dict[str, Any]:
    text = {"type": "array", "items": {"type": "string"}}
    group = _object() | {"properties": {"name": {"type": "string"}, "keys": text}, "required": ["name", "keys"]}
    shapes: dict[Any, dict[str, Any]] = {
        str: {"type": "string"},
        int: {"type": "integer"},
        float: {"type": "number"},
        bool: {"type": "boolean"},
        tuple[str, ...]: text,
        tuple[Group, ...]: {"type": "array", "items": group},
    }
    known = key.about
    shape = dict(shapes[key.type])
    shape["description"] = known.why + (f" [{known.unit}]" if known.unit else "")
    bounds = {"minimum": known.low, "maximum": known.high, "enum": list(known.choices) or None}
    if key.default is not None:
        bounds["default"] = list(key.default) if isinstance(key.default, tuple) else key.default
    return shape | {name: value for name, value in bounds.items() if value is not None}


def _masked(key: Key, value: Any) -> Any:
    return MASK if key.about.secret and value else value


def literal(value: Any) -> str:
    if isinstance(value, Group):
        return f"{{name = {literal(value.name)}, keys = {literal(value.keys)}}}"
    if isinstance(value, tuple):
        return "[" + ", ".join(literal(one) for one in value) + "]"
    # Texts, numbers and booleans of JSON are TOML too, but for DEL, which JSON does not escape.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def template(chosen: Mapping[str, Any]) -> str:
    """Renders TOML that loads to the defaults, except for ``chosen``: values by names of keys (``node.name``)."""
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

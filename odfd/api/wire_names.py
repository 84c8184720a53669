"""Writes ``odfd/control/wire/module_of_name.py``, by which a value of the API is found: its module, by its name.

When run as a module it writes the file anew. It comes before ``odfd.api.openapi`` and ``odfd.api.calls``, which load
values by their names.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from odfd.control import wire

MODULE: Final = Path(wire.__file__).with_name("module_of_name.py")
_INDENT: Final = " " * 8


def modules() -> Sequence[Path]:
    """Returns the modules in which values are declared."""
    return sorted(set(MODULE.parent.glob("*.py")) - {Path(wire.__file__), MODULE})


def text() -> str:
    """Returns the module as it is checked in."""
    rows = "".join(f'    "{path.stem}": """\n{_wrapped_names(path)}\n    """,\n' for path in modules())
    return (
        '"""Names the module of each name of the package. Written by ``python -m odfd.api.wire_names``."""\n\n'
        "from typing import Final\n\n"
        f"_NAMES: Final = {{\n{rows}}}\n"
        "MODULE_OF_NAME: Final = {name: module for module, names in _NAMES.items() for name in names.split()}\n"
    )


def _wrapped_names(path: Path) -> str:
    names = " ".join(sorted(_public_names(path)))
    return textwrap.fill(names, 112, initial_indent=_INDENT, subsequent_indent=_INDENT)


def _public_names(path: Path) -> set[str]:
    found = set()
    for node in ast.parse(path.read_text()).body:
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
                found.add(name)
            case ast.Assign(targets=targets):
                found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return {name for name in found if not name.startswith("_")}


if __name__ == "__main__":
    MODULE.write_text(text())

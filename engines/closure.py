"""Finds which of our source files a module imports, directly or indirectly, by reading the sources; imports nothing.

Import statements are found by their form, as the formatter writes them, at the top of a module and inside functions:
this is 20 times as fast as parsing. Imports that are made from text are not found; we have none
(``tests/unit/engines/test_closure.py``).
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from chain.errors import Environment

OURS: Final = ("chain", "config", "engines")
_IMPORT: Final = re.compile(r"^[ \t]*(?:from ([\w.]+) import (\([^)]*\)|[^\n]+)|import ([^\n]+))", re.MULTILINE)
_NO_DATA: Final = frozenset({".py", ".pyc", ".typed"})


def closure(entry: str) -> dict[str, Path]:
    """Lists by name the modules of ours that ``entry`` may ever import, and the packages that hold them."""
    specs = {name: importlib.util.find_spec(name) for name in OURS}
    roots = {name: Path(spec.origin).parents[1] for name, spec in specs.items() if spec and spec.origin}
    found: dict[str, Path] = {}
    waiting = [entry]
    while waiting:
        name = waiting.pop()
        path = _file_of(name, roots) if name not in found else None
        if path is not None:
            found[name] = path
            waiting += [name.rpartition(".")[0], *find_imports(path.read_text(encoding="utf-8"))]
    return dict(sorted(found.items()))


def files_of(entry: str) -> dict[str, Path]:
    """Lists the files of ``closure`` by path relative to the folder of all packages, with data files next to them."""
    found = {}
    for name, path in closure(entry).items():
        top = path.parents[name.count(".") + (path.name == "__init__.py")]
        data = (each for each in path.parent.iterdir() if each.is_file() and each.suffix not in _NO_DATA)
        for each in (path, *(data if path.name == "__init__.py" else ())):
            found[str(each.relative_to(top))] = each
    return found


def find_imports(source: str) -> Iterator[str]:
    """Yields the names that a source imports: modules, and names that are either modules or members of one."""
    for match in _IMPORT.finditer(source):
        if match[1]:
            yield match[1]
            yield from (f"{match[1]}.{name}" for name in _names(match[2]))
        else:
            yield from _names(match[3])


def package_folder(name: str) -> Path:
    """Returns the folder of a package. Raises Environment if there is none."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        hint = "install the node again, with its engine: odfctl docs install"
        raise Environment(f"the package {name} is not installed", rule="engine-digest", hint=hint)
    return Path(spec.origin).parent


def _names(text: str) -> Iterator[str]:
    for each in re.sub(r"#[^\n]*", "", text).strip("() \n").split(","):
        if words := each.split():
            yield words[0]


def _file_of(name: str, roots: dict[str, Path]) -> Path | None:
    root = roots.get(name.partition(".")[0])
    if root is None:
        return None
    place = root.joinpath(*name.split("."))
    return next((path for path in (place / "__init__.py", place.with_suffix(".py")) if path.is_file()), None)

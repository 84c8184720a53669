"""Finds by entry points what packages add to odfd: sources, doors and exports. Each is loaded when it is used.

odfd's own are declared in the same way, in its pyproject.toml. The client library that one needs is an extra there.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from chain.errors import Refused

SOURCES: Final = "odfd.sources"
DOORS: Final = "odfd.doors"
EXPORTS: Final = "odfd.exports"


@cache
def extensions(group: str) -> Mapping[str, EntryPoint]:
    """Returns the extensions of a group by name, without loading any. Blocking: reads which packages are installed."""
    return {each.name: each for each in entry_points(group=group)}


def load_extension(group: str, name: str, what: str, rule: str) -> Any:
    """Returns the object that an extension names. Raises Refused with ``rule`` if it is not installed. Blocking."""
    try:
        return extensions(group)[name].load()
    except (KeyError, ImportError) as error:
        raise Refused(
            f"{what} are not installed",
            rule=rule,
            hint="install the package that adds them beside odfd; odfd's own come with it: install it anew",
        ) from error


def check_client(module: str, needed_by: str, extra: str) -> None:
    """Raises Refused if a client library that an extra of odfd brings is not installed."""
    if importlib.util.find_spec(module) is None:
        raise Refused(
            f"{needed_by} a client, {module}, which is not installed",
            rule=f"{extra}-extra",
            hint=f"install it beside odfd: pip install 'odfd[{extra}]'",
        )

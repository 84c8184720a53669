"""Finds by entry points what packages add to odfd: sources, doors, exports, chains. Each is loaded when used.

odfd's own are declared in the same way, in its pyproject.toml. The client library that one needs is an extra there.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from chain.errors import Refused

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

SOURCES: Final = "odfd.sources"
DOORS: Final = "odfd.doors"
EXPORTS: Final = "odfd.exports"
CHAINS: Final = "odfd.chains"


@cache
def extensions(group: str) -> Mapping[str, EntryPoint]:
    """Returns the extensions of a group by name, without loading any. Blocking: reads which packages are installed."""
    from importlib.metadata import entry_points  # the library of mail messages: a command without extensions is faster

    return {point.name: point for point in entry_points(group=group)}


def load_extension(group: str, name: str, what: str, rule: str) -> Any:
    """Returns the object that an extension names. Raises Refused with ``rule`` if it is not installed. Blocking."""
    try:
        return extensions(group)[name].load()
    except (KeyError, ImportError) as error:
        raise Refused(
            f"{what} are not installed",
            rule=rule,
            hint="install the package that adds them beside odfd; odfd's own come with it: install it again",
        ) from error


class ExportFormats(Collection[str]):
    """The formats that an option of a command takes: ``more``, and entry points with the name ``OPTION.FORMAT``.

    They are looked up when one is: a parser is made without them.
    """

    def __init__(self, option: str, *more: str) -> None:
        self._prefix, self._more = f"{option}.", more

    def __iter__(self) -> Iterator[str]:
        yield from self._more
        yield from sorted(
            name.removeprefix(self._prefix) for name in extensions(EXPORTS) if name.startswith(self._prefix)
        )

    def __contains__(self, name: object) -> bool:
        return name in self._more or f"{self._prefix}{name}" in extensions(EXPORTS)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def load(self, name: str) -> Any:
        """Returns the object that an entry point names. Raises Refused if it is not installed. Blocking."""
        return load_extension(EXPORTS, f"{self._prefix}{name}", f"exports as {name}", "export-format")


def check_client(module: str, needed_by: str, extra: str) -> None:
    """Raises Refused if a client library that an extra of odfd brings is not installed."""
    if importlib.util.find_spec(module) is None:
        raise Refused(
            f"{needed_by} a client, {module}, which is not installed",
            rule=f"{extra}-extra",
            hint=f"install it beside odfd: pip install 'odfd[{extra}]'",
        )

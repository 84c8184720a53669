"""Loads settings from defaults, a file, the environment and flags, later ones overriding; reports all mistakes."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from config import paths, schema
from config.check import cross
from config.model import MAX_FILE, Settings
from config.schema import ConfigError, Key, Problem

RESERVED: Final = {"ODFD_ACCOUNT", "ODFD_CA_FILE", "ODFD_CONFIG", "ODFD_NODE", "ODFD_SOCKET", "ODFD_TOKEN_FILE"}
"""Variables that are no settings: the settings file, and the node and credentials that the programs use."""


@dataclass(frozen=True, slots=True)
class Loaded:
    settings: Settings
    origins: Mapping[str, str]
    """Origin of each value by its key; keys that are missing here have their default."""
    file: Path | None = None


@dataclass(slots=True)
class _Gathered:
    values: dict[tuple[str, ...], Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def take(self, key: Key, value: Any, place: str) -> None:
        accepted, problem = schema.accept(key, value, place)
        if problem is not None:
            self.problems.append(problem)
        else:
            self.values[key.path] = accepted
            self.origins[key.name] = place


def load(environ: Mapping[str, str], file: Path | None = None, flags: Mapping[str, Any] | None = None) -> Loaded:
    """Loads the settings. ``flags`` are by key (``control.socket``), ``None`` if not given. Raises ConfigError."""
    known = {key.name: key for key in schema.every()}
    gathered = _Gathered()
    named = file or (Path(environ["ODFD_CONFIG"]) if environ.get("ODFD_CONFIG") else None)
    chosen = named or paths.settings_file(environ)
    if chosen is not None:
        _from_file(chosen, known, gathered)
    _from_environment(environ, known, gathered)
    for name, value in (flags or {}).items():
        if value is not None:
            gathered.take(known[name], value, "the command line")
    _fill(environ, gathered)
    settings = schema.build(gathered.values)
    gathered.problems += cross(settings, gathered.origins)
    if gathered.problems:
        raise ConfigError(gathered.problems)
    return Loaded(settings, gathered.origins, chosen)


def _fill(environ: Mapping[str, str], gathered: _Gathered) -> None:
    """Replaces the defaults of paths and of the sandbox by their values on this machine."""
    values = gathered.values
    own_state = bool(values.get(("node", "state_dir")))
    state = Path(values.get(("node", "state_dir")) or paths.state_dir(environ)).expanduser().absolute()
    values[("node", "state_dir")] = str(state)
    socket = values.get(("control", "socket"))
    where = Path(socket).expanduser().absolute() if socket else paths.socket(environ, state, own_state)
    values[("control", "socket")] = str(where)
    if values.get(("engine", "sandbox"), "auto") == "auto":
        values[("engine", "sandbox")] = "host" if paths.under_systemd(environ) else "none"


def _from_file(file: Path, known: Mapping[str, Key], gathered: _Gathered) -> None:
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_FILE + 1)
    except OSError as error:
        hint = "name a file that the daemon may read, or write a first one: odfd init"
        gathered.problems.append(Problem(str(file), f"cannot be read: {error.strerror or error}", hint))
        return
    if len(data) > MAX_FILE:
        gathered.problems.append(Problem(str(file), f"is larger than {MAX_FILE} bytes", "name a file of settings"))
        return
    try:
        text = data.decode()
        document = tomllib.loads(text)
    except UnicodeDecodeError as error:
        hint = "settings are UTF-8: convert it, for example with iconv"
        gathered.problems.append(Problem(str(file), f"is not UTF-8 text (byte {error.start})", hint))
    except tomllib.TOMLDecodeError as error:
        gathered.problems.append(_not_toml(file, str(error)))
    else:
        lines = line_numbers(text)
        for name, value in _flat(document, "", known):
            place = f"{file}:{lines[name]}" if name in lines else str(file)
            if name in known:
                gathered.take(known[name], value, place)
            else:
                gathered.problems.append(_unknown(name, value, place, known))


def _not_toml(file: Path, message: str) -> Problem:
    match = re.search(r"\(at line (\d+), column \d+\)", message)
    place = f"{file}:{match[1]}" if match else str(file)
    return Problem(place, f"is not TOML: {message}", 'texts need quotes: name = "value"')


def _flat(table: Mapping[str, Any], prefix: str, known: Mapping[str, Key]) -> Iterator[tuple[str, Any]]:
    """Yields keys with their values; an unknown table is yielded as a whole, to be reported once."""
    for step, value in table.items():
        name = f"{prefix}{step}"
        inside = name + "."
        if isinstance(value, dict) and any(key.startswith(inside) for key in known):
            yield from _flat(value, inside, known)
        else:
            yield name, value


def _unknown(name: str, value: Any, place: str, known: Mapping[str, Key]) -> Problem:
    if any(key.startswith(name + ".") for key in known):
        return Problem(place, f"[{name}] is a table, not {value!r}"[:120], f"write [{name}] and its keys below")
    tables = {key.table for key in known.values()} | {key.table.partition(".")[0] for key in known.values()}
    candidates = tables if isinstance(value, dict) else known
    near = difflib.get_close_matches(name, list(candidates), n=1, cutoff=0.6)
    if not near:
        last = name.rpartition(".")[2]
        near = [key for key in known if key.rpartition(".")[2] == last][:1]
    what = "table" if isinstance(value, dict) else "setting"
    return Problem(
        place, f"there is no {what} {name}", f"did you mean {near[0]}?" if near else "odfd config show lists all"
    )


def _from_environment(environ: Mapping[str, str], known: Mapping[str, Key], gathered: _Gathered) -> None:
    variables = {key.variable: key for key in known.values()}
    for variable in sorted(environ):
        if not variable.startswith("ODFD_") or variable in RESERVED:
            continue
        place = f"environment {variable}"
        key = variables.get(variable)
        if key is not None:
            gathered.take(key, schema.from_text(key, environ[variable]), place)
            continue
        near = difflib.get_close_matches(variable, list(variables), n=1, cutoff=0.6)
        gathered.problems.append(
            Problem(place, "there is no such setting", f"did you mean {near[0]}?" if near else "unset it")
        )


_TABLE: Final = re.compile(r"\s*\[{1,2}\s*([^\]]+?)\s*\]{1,2}\s*(?:#.*)?$")
_KEY: Final = re.compile(r"\s*([A-Za-z0-9_\-.\"' ]+?)\s*=")


def line_numbers(text: str) -> dict[str, int]:
    """Finds the line of each key and table of a TOML text by its shape, for messages."""
    found: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if match := _TABLE.match(line):
            table = _dotted(match[1])
            found.setdefault(table, number)
            table += "."
        elif match := _KEY.match(line):
            found.setdefault(table + _dotted(match[1]), number)
    return found


def _dotted(text: str) -> str:
    return ".".join(step.strip().strip("\"'") for step in text.split("."))

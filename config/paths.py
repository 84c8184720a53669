"""Finds directories: systemd's if it provides them, else those of the XDG specification; and that of our code."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Final

SYSTEM_FILE: Final = Path("/etc/odfd/odfd.toml")
EVENTS: Final = "events"
"""Name of the log's part for the lines that ``odfctl watch`` shows."""
PRIVATE: Final = "_code"
"""Name of the folder with our packages, within the one package that the wheel installs."""

PAGES: Final = Path(__file__).parents[1] / "docs"
"""The pages of the documentation, beside our packages wherever they are installed."""


def under_systemd(environ: Mapping[str, str]) -> bool:
    """Whether the process was started as a system service with a state directory of its own."""
    return "STATE_DIRECTORY" in environ


def state_dir(environ: Mapping[str, str]) -> Path:
    if given := environ.get("STATE_DIRECTORY"):
        return Path(given.split(":")[0])
    if xdg := environ.get("XDG_STATE_HOME"):
        return Path(xdg) / "odfd"
    return Path(environ.get("HOME", "/")) / ".local" / "state" / "odfd"


def socket(environ: Mapping[str, str], state: Path, own_state: bool) -> Path:
    """Returns the control socket's path; with ``own_state``, a state directory that was named, it is inside."""
    if own_state:
        return state / "control.sock"
    if given := environ.get("RUNTIME_DIRECTORY"):
        return Path(given.split(":")[0]) / "control.sock"
    if xdg := environ.get("XDG_RUNTIME_DIR"):
        return Path(xdg) / "odfd" / "control.sock"
    return state / "control.sock"


def user_file(environ: Mapping[str, str]) -> Path:
    """Returns the path of the settings of a user's own node."""
    home = environ.get("XDG_CONFIG_HOME") or str(Path(environ.get("HOME", "/")) / ".config")
    return Path(home) / "odfd" / "odfd.toml"


def settings_file(environ: Mapping[str, str]) -> Path | None:
    """Returns the file to read when none is named: the user's, else the system's, else ``None``."""
    places = [user_file(environ), SYSTEM_FILE]
    if given := environ.get("CONFIGURATION_DIRECTORY"):
        places.insert(0, Path(given.split(":")[0]) / "odfd.toml")
    return next((place for place in places if place.is_file()), None)


def has_part(name: str) -> bool:
    """Whether the log can have lines of this part: a package or module of ours, a library, or ``events``."""
    first, *names = name.split(".")
    ours = Path(__file__).parents[1] / first
    if not ours.is_dir():
        return name == EVENTS or importlib.util.find_spec(first) is not None
    place = ours.joinpath(*names)
    return place.is_dir() or place.with_suffix(".py").is_file()


def code_environment() -> dict[str, str]:
    """Returns the environment for processes that run our modules: the path to our packages and their dependencies."""
    code = Path(__file__).parents[1]
    return {"PYTHONPATH": f"{code}:{code.parents[1]}"} if code.name == PRIVATE else {}

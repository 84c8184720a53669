"""A door is found by its name where a setting opens it, loaded then alone, and refused where nobody installed it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from config.load import load
from config.schema import ConfigError, opened_doors
from odfd.node.settings_check import check_components
from odfd.queries.doors import Door, load_door
from odfd.runtime import extensions
from odfd.runtime.extensions import DOORS


class OtherDoor(Door):
    """Of another package."""


class Entry:
    def load(self) -> type[Door]:
        return OtherDoor


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extensions, "extensions", lambda _: {"other": Entry()})


def loaded(folder: Path, text: str) -> Any:
    file = folder / "odfd.toml"
    file.write_text(text)
    return load({"HOME": str(folder)}, file)


def test_settings_say_which_doors_they_open(tmp_path: Path) -> None:
    assert opened_doors(loaded(tmp_path, "").settings) == {}
    site = '[http]\nlisten = ["127.0.0.1:0"]\nquery = true\n'
    text = f'[node]\ndoors = ["other"]\n{site}[flight]\nlisten = ["127.0.0.1:0"]\n'
    opened = {"flight": "flight.listen", "kamu": "http.query", "other": "node.doors"}
    assert opened_doors(loaded(tmp_path, text).settings) == opened


def test_every_door_of_a_setting_is_an_entry_point_that_is_a_door() -> None:
    own = {name: each.load() for name, each in extensions.extensions(DOORS).items()}
    assert {"flight", "kamu"} <= own.keys()
    assert all(issubclass(door, Door) for door in own.values())


@pytest.mark.usefixtures("added")
def test_a_door_of_another_package_is_loaded(tmp_path: Path) -> None:
    check_components(loaded(tmp_path, '[node]\ndoors = ["other"]\n'))
    assert load_door("other") is OtherDoor


@pytest.mark.usefixtures("added")
@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("node.doors", '[node]\ndoors = ["unknown"]\n'),
        ("flight.listen", '[flight]\nlisten = ["127.0.0.1:0"]\n'),
        ("http.query", '[http]\nlisten = ["127.0.0.1:0"]\nquery = true\n'),
    ],
)
def test_a_door_that_nobody_installed_is_refused_at_its_setting(setting: str, text: str, tmp_path: Path) -> None:
    settings = loaded(tmp_path, text)
    with pytest.raises(ConfigError) as refused:
        check_components(settings)
    (problem,) = refused.value.problems
    assert problem.place == settings.origins[setting]
    assert "are not installed" in problem.message
    assert "install the package that adds them" in problem.hint


def test_a_node_whose_settings_open_none_loads_none() -> None:
    program = "import sys, odfd.node.assembly; print(*{'odfd.flight', 'odfd.kamu'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []

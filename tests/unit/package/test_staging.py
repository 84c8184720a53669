"""What is installed takes one name, brings what a system looks for, and finds its own packages among strangers'."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import config.paths
from config.paths import PRIVATE, code_environment
from engines.sandbox.base import Job, PlainProcess
from engines.sandbox.bubblewrap import host_runtime

TREE = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("argparse_manpage", reason="argparse-manpage is not installed: make install")
    from package.staging import stage

    folder = tmp_path_factory.mktemp("wheel") / "source"
    stage(folder)
    return folder


@pytest.mark.slow
def test_one_name_is_taken(staged: Path) -> None:
    said = tomllib.loads((staged / "pyproject.toml").read_text())
    assert said["tool"]["setuptools"]["packages"] == ["odfd_node"]
    assert {path.parent.name for path in staged.glob("*/__init__.py")} == {"odfd_node"}
    assert {path.name for path in (staged / "odfd_node" / PRIVATE).iterdir()} == {
        "config", "chain", "engines", "p2p", "odfd", "docs"
    }  # fmt: skip
    assert (staged / "odfd_node" / PRIVATE / "docs" / "sources.md").is_file()
    assert not [each for each in said["project"]["dependencies"] if each.startswith(("pyspark", "pandas", "py4j"))]
    assert any(each.startswith("pyspark==") for each in said["project"]["optional-dependencies"]["engine"])


def test_what_is_found_by_entry_points_is_found_in_the_wheel_too(staged: Path) -> None:
    """Names with dots are quoted: without quotes they are tables of TOML, and no wheel is built."""
    ours, written = (tomllib.loads((root / "pyproject.toml").read_text())["project"] for root in (TREE, staged))
    assert written["entry-points"] == ours["entry-points"]


@pytest.mark.slow
def test_every_file_that_belongs_beside_it_is_there(staged: Path) -> None:
    said = tomllib.loads((staged / "pyproject.toml").read_text())["tool"]["setuptools"]["data-files"]
    for files in said.values():
        assert all((staged / file).stat().st_size > 90 for file in files), files
    manual = (staged / "share/man/man1/odfctl.1").read_text()
    assert manual.startswith(".TH ")
    from odfd.cli import registry

    assert not [name for name in registry.entries() if name not in manual]
    assert (staged / "lib/systemd/system/odfd.service").read_text() == (TREE / "systemd/odfd.service").read_text()


@pytest.mark.slow
def test_the_same_source_gives_the_same_bytes(staged: Path, tmp_path: Path) -> None:
    from package.staging import stage

    stage(tmp_path / "again")

    def contents(folder: Path) -> dict[str, bytes]:
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    assert contents(staged) == contents(tmp_path / "again")


@pytest.mark.slow
def test_it_finds_its_own_packages_among_those_of_strangers(staged: Path, tmp_path: Path) -> None:
    """A stranger's ``config`` stands before everything that is installed, and is another program's still."""
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "__init__.py").write_text("raise SystemExit('a stranger was imported')\n")
    code = (
        "import sys; sys.argv = ['odfd', 'config', 'check'];"
        " from odfd_node.launch import odfd; import atexit;"
        " atexit.register(lambda: print(sys.modules['config'].__file__)); odfd()"
    )
    paths = os.pathsep.join([str(tmp_path), str(staged)])
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path,
        env={"PYTHONPATH": paths, "PATH": os.environ["PATH"], "HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(staged / "odfd_node" / PRIVATE / "config" / "__init__.py")


@pytest.mark.slow
def test_processes_of_an_installed_node_find_its_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    job: Any = Job(argv=("python",), env={"PATH": "/bin"}, mounts=(), memory=1, total=1, processes=1)
    assert code_environment() == {}, "a checkout is found by itself"
    assert PlainProcess().command(job, ()).env == {"PATH": "/bin"}
    installed = tmp_path / "site" / "odfd_node" / PRIVATE / "config" / "paths.py"
    monkeypatch.setattr(config.paths, "__file__", str(installed))
    expected = f"{tmp_path}/site/odfd_node/{PRIVATE}:{tmp_path}/site"
    assert PlainProcess().command(job, ()).env == {"PATH": "/bin", "PYTHONPATH": expected}
    assert host_runtime(()).environment == {"PYTHONPATH": expected}

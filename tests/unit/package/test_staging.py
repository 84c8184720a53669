"""What packages hold, and what finds it."""

from __future__ import annotations

import ctypes
import importlib.util
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
from package import staging
from package.__main__ import CONTROL, _describe
from package.programs import ENGINE, HOME, SQL, compile_all, leave_out, move
from package.symbols import strip_libraries, stripped

# What is installed takes one name, brings what a system looks for, and finds its own packages among strangers'.

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
    assert (staged / "odfd_node" / PRIVATE / "docs" / "reference" / "commands.md").is_file()
    assert not [each for each in said["project"]["dependencies"] if each.startswith(("pyspark", "pandas", "py4j"))]
    assert any(each.startswith("pyspark==") for each in said["project"]["optional-dependencies"]["engine"])


def test_what_is_found_by_entry_points_is_found_in_the_wheel_too(staged: Path) -> None:
    """Names with dots are quoted: without quotes they are tables of TOML, and no wheel is built."""
    ours, written = (tomllib.loads((root / "pyproject.toml").read_text())["project"] for root in (TREE, staged))
    assert written["entry-points"] == ours["entry-points"]


def test_the_wheel_says_of_itself_what_the_repository_says(staged: Path) -> None:
    ours, written = (tomllib.loads((root / "pyproject.toml").read_text())["project"] for root in (TREE, staged))
    kept = ours.keys() - {"dependencies", "optional-dependencies", "scripts"}
    assert {"authors", "urls", "classifiers", "keywords", "readme", "license-files"} <= kept
    assert {key: written.get(key) for key in kept} == {key: ours[key] for key in kept}
    for name in (ours["readme"], *ours["license-files"]):
        assert (staged / name).read_text() == (TREE / name).read_text()


@pytest.mark.parametrize(
    ("author", "named"),
    [({"name": "A"}, "A"), ({"name": "A", "email": "a@example.org"}, "A <a@example.org>")],
)
def test_a_package_names_an_address_only_if_the_metadata_has_one(
    author: dict[str, str], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "project", lambda: {"authors": [author]})
    assert staging.maintainer() == named


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


# What a Debian package leaves out, ships compiled, and keeps in a package of its own.

NOON = 1767225600


def laid(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("X = 1\n")
    return folder


def found(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_libraries_that_the_node_stands_in_for_are_left_out(tmp_path: Path) -> None:
    home = laid(
        tmp_path, "aioquic/tls.py", "aioquic-1.dist-info/RECORD", "libp2p/security/tls/io.py",
        "libp2p/security/noise/io.py",
        "pyarrow/_hdfs.cpython-311-x86_64-linux-gnu.so", "trio/tests/a.py", "trio/a.py", "grpc/a.py",
    )  # fmt: skip
    leave_out(home)
    assert found(home) == {"libp2p/security/noise/io.py", "trio/a.py", "grpc/a.py"}
    leave_out(home, ENGINE)
    assert found(home) == {"libp2p/security/noise/io.py", "trio/a.py"}


def test_what_queries_need_is_moved_to_a_package_of_its_own(tmp_path: Path) -> None:
    names = {
        "duckdb/__init__.py", "_duckdb.so", "duckdb-2.dist-info/RECORD", "pyarrow/_flight.so", "pyarrow/flight.py",
        "pyarrow/libarrow_flight.so.2600", "pyarrow/libarrow_python_flight.so.2600", "prompt_toolkit/a.py",
        "prompt_toolkit-3.dist-info/RECORD", "wcwidth/a.py", "wcwidth-0.dist-info/RECORD", "xlsxwriter/a.py",
        "xlsxwriter-3.dist-info/RECORD",
    }  # fmt: skip
    home, other = laid(tmp_path / "home", "pyarrow/lib.so", *names), tmp_path / "other"
    move(home, other, SQL)
    assert (found(home), found(other)) == ({"pyarrow/lib.so"}, names)
    with pytest.raises(FileNotFoundError, match=r"out of date"):
        move(home, other, SQL)
    assert len({*SQL, *ENGINE}) == len(SQL) + len(ENGINE)


def test_others_code_is_compiled_and_runs_without_sources(tmp_path: Path) -> None:
    home = laid(
        tmp_path, "odfd_node/launch.py", "free/__init__.py", "free/part.py", "single.py", "shared/__init__.py",
        "free-1.dist-info/METADATA", "shared-1.dist-info/METADATA", "shared-1.dist-info/RECORD", "free/table.json",
    )  # fmt: skip
    (home / "free/part.py").write_text("def fail():\n    raise ValueError\n")
    (home / "free-1.dist-info/METADATA").write_text("Name: free\nLicense-Expression: MIT\n\nNot the GPL.\n")
    (home / "shared-1.dist-info/METADATA").write_text("Name: shared\nLicense-Expression: LGPL-2.1-or-later\n\n")
    (home / "shared-1.dist-info/RECORD").write_text("shared/__init__.py,,\nshared-1.dist-info/METADATA,,\n")
    compile_all(home, NOON)
    tag = f"__pycache__/{{}}.{sys.implementation.cache_tag}.pyc"
    assert {name for name in found(home) if "dist-info" not in name} == {
        "odfd_node/launch.py", "odfd_node/" + tag.format("launch"), "shared/__init__.py",
        "shared/" + tag.format("__init__"), "free/__init__.pyc", "free/part.pyc", "single.pyc", "free/table.json",
    }  # fmt: skip
    before = {name: (home / name).read_bytes() for name in found(home)}
    words = "import sys; sys.path.insert(0, sys.argv[1]); import odfd_node.launch, single, shared, free.part as part"
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"{words}; part.fail()", str(home)], capture_output=True, text=True, check=False
    )
    assert f'File "/{HOME}/free/part.py", line 2, in fail' in done.stderr
    assert {name: (home / name).read_bytes() for name in found(home)} == before, "Python took what was compiled"


@pytest.mark.parametrize("name", CONTROL)
def test_a_package_says_what_it_is_and_needs(name: str, tmp_path: Path) -> None:
    _describe(laid(tmp_path, "usr/lib/odfd/a.py"), name, "1.2")
    fields = dict(
        line.split(": ", 1) for line in (tmp_path / "DEBIAN/control").read_text().splitlines() if line[0] != " "
    )
    assert (fields["Package"], fields["Version"]) == (name, "1.2")
    assert (fields["Depends"] == "odfd (= 1.2)") is (name != "odfd")
    said = tomllib.loads((TREE / "pyproject.toml").read_text())["project"]
    assert fields["Maintainer"].startswith(said["authors"][0]["name"])
    assert fields["Homepage"] in said["urls"].values()
    assert (tmp_path / "DEBIAN/postinst").exists() is (name in ("odfd", "odfd-engine"))
    assert (tmp_path / "DEBIAN/templates").exists() is (name == "odfd")


# Libraries without what only debuggers read: they load as before, and nothing else is touched.


def library(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin)


def test_a_stripped_library_is_smaller_and_loads(tmp_path: Path) -> None:
    """It gives what it gave: names that the loader finds stay."""
    source = library("fastavro._read")
    copy, text = tmp_path / source.name, tmp_path / "linked.so.1.txt"
    copy.write_bytes(source.read_bytes())
    text.write_text("no library")
    (tmp_path / "name.so").symlink_to(copy)
    strip_libraries(tmp_path)
    assert copy.stat().st_size < source.stat().st_size // 2
    assert (text.read_text(), (tmp_path / "name.so").is_symlink()) == ("no library", True)
    assert ctypes.CDLL(str(copy)).PyInit__read


def test_what_is_stripped_has_nothing_more_to_strip() -> None:
    once = stripped(library("cbor2._cbor2").read_bytes())
    assert stripped(once) == once


def test_numbers_of_sections_stay() -> None:
    """NumPy's has a mapped section behind others, which its symbols name by numbers: it stays as it is."""
    whole = library("numpy._core._multiarray_umath").read_bytes()
    assert stripped(whole) == whole


@pytest.mark.parametrize("text", [b"", b"\x7fELF", b"\x7fELF\x01\x01" + bytes(64), b"#!/bin/sh\n", bytes(100)])
def test_what_is_no_library_of_this_kind_stays_as_it_is(text: bytes) -> None:
    assert stripped(text) == text


# A node that was installed without the engine: what its daemon loads does not need Spark.

ROOT = Path(__file__).parents[3]
LOADS = """
import sys
for name in ("pyspark", "py4j", "pandas", "grpc"):
    sys.modules[name] = None
import odfd.api.services, odfd.cli.main, odfd.daemon.main, odfd.daemon.wiring, odfd.node.assembly, odfd.node.features
"""


@pytest.mark.slow
def test_a_daemon_starts_without_spark() -> None:
    done = subprocess.run([sys.executable, "-c", LOADS], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]

"""What a Debian package leaves out, ships compiled, and keeps in a package of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from package.__main__ import CONTROL, _describe
from package.programs import ENGINE, HOME, SQL, compile_all, leave_out, move

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
    assert (tmp_path / "DEBIAN/postinst").exists() is (name in ("odfd", "odfd-engine"))
    assert (tmp_path / "DEBIAN/templates").exists() is (name == "odfd")

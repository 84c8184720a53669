"""Lays out the programs of a packaged node, which find their code in one folder that no other program looks into.

docs/explanation/design-notes.md#note-71 says what is a package of its own, and why.
"""

from __future__ import annotations

import compileall
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from py_compile import PycInvalidationMode
from typing import Any, Final

from chain.errors import Environment

HOME: Final = "usr/lib/odfd"
"""Folder of the node's code and of all that it needs, from the root."""
_LAID_OUT: Final = ("share", "lib", "bin")
"""Of what is installed into ``HOME``: what belongs elsewhere in a system."""
_OF_OTHERS: Final = (
    *("**/tests", "**/_tests", "**/SelfTest", "pyarrow/include", "pyarrow/includes", "pyarrow/src", "**/conftest.py"),
    "netaddr/eui/*.txt",  # makers of network cards, 8 MB of them; addresses of IP do without
    *("numpy/distutils", "numpy/f2py", "pyarrow/_pyarrow_cpp_tests.*"),
    *("mypy_protobuf*", "mypy_extensions*", "types_*.dist-info", "*-stubs", "**/*.pyi", "*.dist-info/sboms"),
    *("docs", "examples", "interop", "newsfragments", "stubs"),  # libp2p installs them as packages
    *("pyarrow/libarrow_s3.so*", "pyarrow/_s3fs.*"),  # the node reads buckets by obstore
    *("pyarrow/libarrow_python*.so", "pyarrow/libarrow_python*.so.*.*"),  # copies of the one that is loaded
    *("pyarrow/_azurefs.*", "pyarrow/_gcsfs.*", "pyarrow/_hdfs.*", "pyarrow/_orc.*", "pyarrow/_dataset_orc.*"),
    # What libp2p names for other transports, TLS, UPnP and its own discovery: p2p.host.library stands in for it.
    *("aioquic*", "pylsqpack*", "OpenSSL", "pyopenssl-*", "service_identity*", "dns", "dnspython-*", "miniupnpc*"),
    *("trio_websocket*", "requests*", "urllib3*", "rpcudp*", "umsgpack", "u_msgpack_python-*"),
    *(f"libp2p/transport/{name}" for name in ("quic", "webrtc", "websocket", "webtransport")),
    *("libp2p/security/tls", "libp2p/discovery"),
    *(f"**/*.{ending}" for ending in ("pyx", "pxd", "pxi", "c", "cc", "cpp", "h", "hpp")),
)
"""Tests, sources and parts of libraries that the node never loads."""
_LEXERS: Final = frozenset({"__init__.py", "_mapping.py", "special.py", "python.py"})
"""Of 600 languages the node colours Python in its own traces alone, and shows code of strangers as plain text."""
SQL: Final = (
    *("duckdb", "_duckdb.*", "duckdb-*", "pyarrow/_flight.*", "pyarrow/flight.py*"),
    *("pyarrow/libarrow_flight.so.*", "pyarrow/libarrow_python_flight.so.*"),
    *("prompt_toolkit", "prompt_toolkit-*", "wcwidth", "wcwidth-*"),  # the shell of odfctl sql
    *("xlsxwriter", "xlsxwriter-*"),
)
"""What only queries need: a package of its own, without which the node refuses them by name."""
ENGINE: Final = ("grpc", "grpcio-*")  # engines are spoken to by it; libp2p only names it
"""Of a node's libraries, what only the engine needs: a part of its package, beside Spark and Java."""
OURS: Final = "odfd_node"
_COPYLEFT: Final = re.compile(r"(?m)^(License|License-Expression|Classifier: License)\b.*(GPL|MPL|Mozilla)")
_OPTIONS: Final[dict[str, Any]] = {
    "quiet": 1, "force": True, "invalidation_mode": PycInvalidationMode.TIMESTAMP,
}  # fmt: skip
PYTHON: Final = "/usr/bin/python3.11"
_PROGRAM: Final = """#!{python} -IP
import sys
sys.path.insert(0, "/{home}")
from odfd_node.launch import {name}
{name}()
"""


def leave_out(home: Path, more: Iterable[str] = ()) -> None:
    """Removes from what was installed what is not shipped. ``more``: patterns of what this package has no use for."""
    for pattern in (*_LAID_OUT, *_OF_OTHERS, *more):
        for path in [*home.glob(pattern)]:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
    for path in home.glob("pygments/lexers/*.py"):
        if path.name not in _LEXERS:
            path.unlink()


def move(home: Path, other: Path, patterns: Iterable[str]) -> None:
    """Moves what another package has to its tree. Raises FileNotFoundError for a pattern that matches nothing."""
    for pattern in patterns:
        found = sorted(home.glob(pattern))
        if not found:
            raise FileNotFoundError(f"{pattern} is not in {home}: the patterns of package.programs are out of date")
        for path in found:
            target = other / path.relative_to(home)
            target.parent.mkdir(parents=True, exist_ok=True)
            path.rename(target)


def compile_all(home: Path, seconds: int) -> None:
    """Compiles all Python, once for all machines; others' modules are shipped without their sources.

    Sources stay where a licence asks for them, and of our own code. Every file gets the time ``seconds``, by which
    Python knows which source a compiled file is of. Run it by the Python that the package depends on.
    """
    for path in home.rglob("*.py"):
        os.utime(path, (seconds, seconds))
    with_source = {OURS, *_copyleft(home)}
    for path in sorted(home.iterdir()):
        keeps = path.name in with_source
        for source in sorted(path.rglob("*.py")) if path.is_dir() else [path] if path.suffix == ".py" else ():
            compileall.compile_file(source, **_OPTIONS, legacy=not keeps, stripdir=home, prependdir=f"/{HOME}")
            if not keeps and source.with_suffix(".pyc").is_file():
                source.unlink()


def compile_beside(root: Path, seconds: int) -> None:
    """Compiles all Python below a root, beside its sources, which get the time ``seconds``."""
    for source in sorted(root.rglob("*.py")):
        os.utime(source, (seconds, seconds))
        compileall.compile_file(source, **_OPTIONS, legacy=False, stripdir=root, prependdir="/")


def run_compiler(function: str, folder: Path, seconds: int) -> None:
    """Runs one of the two in the Python of packages: this one may be another, whose compiled files it cannot read.

    A process of its own, with a seed of hashes, writes the same bytes from the same sources. Raises Environment.
    """
    words = f"import sys; from pathlib import Path; from package.programs import {function}"
    argv = [PYTHON, "-c", f"{words}; {function}(Path(sys.argv[1]), {seconds})", str(folder)]
    try:
        subprocess.run(argv, check=True, cwd=Path(__file__).parents[1], env=os.environ | {"PYTHONHASHSEED": "0"})
    except OSError as error:
        raise Environment(
            f"cannot run {PYTHON}: {error.strerror}",
            rule="package-python",
            hint="install the system's Python 3.11: packages are compiled by it",
        ) from error


def _copyleft(home: Path) -> Iterator[str]:
    """Yields names of packages whose licences ask for sources beside compiled code."""
    for metadata in home.glob("*.dist-info/METADATA"):
        if _COPYLEFT.search(metadata.read_text(encoding="utf-8").partition("\n\n")[0]):
            record = metadata.with_name("RECORD")
            if record.is_file():
                listed = record.read_text(encoding="utf-8").splitlines()
                yield from {line.partition("/")[0] for line in listed if ".dist-info/" not in line}
            else:
                yield _named(metadata.parent)


def _named(metadata: Path) -> str:
    """Returns the package of a distribution that lists no files. Raises FileNotFoundError if it is called otherwise."""
    name = metadata.name.partition("-")[0]
    if not metadata.with_name(name).is_dir():
        raise FileNotFoundError(f"no package {name} of {metadata.name}: package.programs has to know what it is called")
    return name


def programs() -> dict[str, str]:
    """Text of each program, by its place from the root."""
    return {f"usr/bin/{name}": _PROGRAM.format(python=PYTHON, home=HOME, name=name) for name in ("odfd", "odfctl")}

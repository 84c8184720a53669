"""Lays out the programs of a packaged node, which find their code in one folder that no other program looks into."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

HOME: Final = "usr/lib/odfd"
"""Folder of the node's code and of all that it needs, from the root."""
_LAID_OUT: Final = ("share", "lib", "bin")
"""Of what is installed into ``HOME``: what belongs elsewhere in a system."""
_OF_OTHERS: Final = (
    *("**/tests", "**/_tests", "**/SelfTest", "pyarrow/include", "pyarrow/includes", "pyarrow/src", "**/conftest.py"),
    *("grpc", "grpcio-*.dist-info"),  # engines are spoken to by it, and a packaged node has none; libp2p only names it
    "netaddr/eui/*.txt",  # makers of network cards, 8 MB of them; addresses of IP do without
    *("numpy/distutils", "numpy/f2py", "pyarrow/_pyarrow_cpp_tests.*"),
    *("mypy_protobuf*", "mypy_extensions*", "types_*.dist-info", "*-stubs", "**/*.pyi", "*.dist-info/sboms"),
    *("docs", "examples", "interop", "newsfragments", "stubs"),  # libp2p installs them as packages
    *("pyarrow/libarrow_s3.so*", "pyarrow/_s3fs.*"),  # the node reads buckets by obstore
    *("pyarrow/libarrow_python*.so", "pyarrow/libarrow_python*.so.*.*"),  # copies of the one that is loaded
    *(f"**/*.{ending}" for ending in ("pyx", "pxd", "pxi", "c", "cc", "cpp", "h", "hpp")),
)
"""Tests, sources and parts of libraries that the node never loads."""
_LEXERS: Final = frozenset({"__init__.py", "_mapping.py", "special.py", "python.py"})
"""Of 600 languages the node colours Python in its own traces alone, and shows code of strangers as plain text."""
PYTHON: Final = "/usr/bin/python3.11"
_PROGRAM: Final = """#!{python} -IP
import sys
sys.path.insert(0, "/{home}")
from odfd_node.launch import {name}
{name}()
"""


def leave_out(home: Path) -> None:
    """Removes from what was installed what is not shipped."""
    for pattern in (*_LAID_OUT, *_OF_OTHERS):
        for path in [*home.glob(pattern)]:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
    for path in home.glob("pygments/lexers/*.py"):
        if path.name not in _LEXERS:
            path.unlink()


def programs() -> dict[str, str]:
    """Text of each program, by its place from the root."""
    return {f"usr/bin/{name}": _PROGRAM.format(python=PYTHON, home=HOME, name=name) for name in ("odfd", "odfctl")}

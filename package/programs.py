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
    *("**/tests", "**/SelfTest", "pyarrow/include", "pyarrow/src"),
    *("docs", "examples", "interop", "newsfragments", "stubs"),  # libp2p installs them as packages
    *("pyarrow/libarrow_s3.so*", "pyarrow/_s3fs.*"),  # the node reads buckets by obstore
    *("pyarrow/libarrow_python*.so", "pyarrow/libarrow_python*.so.*.*"),  # copies of the one that is loaded
    *(f"**/*.{ending}" for ending in ("pyx", "pxd", "pxi", "c", "cc", "cpp", "h", "hpp")),
)
"""Tests, sources and parts of libraries that the node never loads."""
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


def programs() -> dict[str, str]:
    """Text of each program, by its place from the root."""
    return {f"usr/bin/{name}": _PROGRAM.format(python=PYTHON, home=HOME, name=name) for name in ("odfd", "odfctl")}

"""Lays out the programs of a packaged node, which find their code in one folder that no other program looks into."""

from __future__ import annotations

from typing import Final

HOME: Final = "usr/lib/odfd"
"""Folder of the node's code and of all that it needs, from the root."""
NOT_SHIPPED: Final = ("pyarrow/tests", "pyarrow/include", "pyarrow/src", "numpy/tests", "share", "lib", "bin")
"""Of what is installed into ``HOME``: tests and headers of others, and what is laid out elsewhere."""
PYTHON: Final = "/usr/bin/python3.11"
_PROGRAM: Final = """#!{python} -IP
import sys
sys.path.insert(0, "/{home}")
from odfd_node.launch import {name}
{name}()
"""


def programs() -> dict[str, str]:
    """Text of each program, by its place from the root."""
    return {f"usr/bin/{name}": _PROGRAM.format(python=PYTHON, home=HOME, name=name) for name in ("odfd", "odfctl")}

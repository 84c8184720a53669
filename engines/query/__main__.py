"""Runs the process of one query, or the zygote of such processes, whose line to the node is its standard input.

python -m engines.query --inputs DIR --temporary DIR --memory BYTES --temporary-bytes BYTES --threads N
python -m engines.query zygote
"""

from __future__ import annotations

import socket
import sys
from typing import Any


def main() -> int:
    """Runs the process after blocking imports that take longer than most queries: of numpy and pandas by Arrow and
    DuckDB, and of typing_extensions by msgspec, which needs nothing of it."""
    modules: dict[str, Any] = sys.modules
    for name in ("numpy", "pandas", "typing_extensions"):
        modules[name] = None
    from engines.query.worker import main as serve

    if sys.argv[1:] == ["zygote"]:
        import pyarrow.compute  # noqa: F401  # for answers as lines of text: a fork has it for nothing

        from engines.sandbox.zygote import serve as serve_forks

        serve_forks(socket.socket(fileno=0), serve)
        return 0
    return serve()


if __name__ == "__main__":
    sys.exit(main())

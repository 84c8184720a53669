"""Runs the process of one query.

python -m engines.query --inputs DIR --temporary DIR --memory BYTES --temporary-bytes BYTES --threads N
"""

from __future__ import annotations

import sys
from typing import Any


def main() -> int:
    """Runs the process after blocking the import of numpy and pandas by Arrow and DuckDB, which takes
    longer than most queries."""
    modules: dict[str, Any] = sys.modules
    for name in ("numpy", "pandas"):
        modules[name] = None
    from engines.query.worker import main as serve

    return serve()


if __name__ == "__main__":
    sys.exit(main())

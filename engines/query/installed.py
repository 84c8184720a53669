"""Says whether queries can run here: DuckDB, and what else only they need, are a package of their own on Debian."""

from __future__ import annotations

import importlib.util
from typing import Final

from chain.errors import Environment

SQL_MISSING: Final = "sql-missing"
"""Rule of the refusal where odfd was installed without SQL: a choice of the operator, and no failure."""


def why_no_sql(module: str = "duckdb") -> Environment | None:
    """Returns the refusal where odfd was installed without SQL. ``module``: the one that is about to be imported."""
    if importlib.util.find_spec(module) is not None:
        return None
    return Environment(
        "SQL is not installed with this odfd",
        rule=SQL_MISSING,
        hint="apt install ./odfd-sql_VERSION_amd64.deb, of the version of the node, adds it (odfctl docs install)",
    )


def need_sql(module: str = "duckdb") -> None:
    """Raises Environment where odfd was installed without SQL."""
    if (why := why_no_sql(module)) is not None:
        raise why

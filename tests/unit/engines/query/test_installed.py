"""Without SQL, which Debian has in a package of its own, queries are refused by name."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from chain.errors import Environment
from engines.query.installed import SQL_MISSING, need_sql, why_no_sql
from engines.query.reader import QueryLimits, QueryProcesses
from odfd.services.maintenance.status import _sql_probe


@pytest.fixture
def without_sql(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec

    def find_spec(name: str, *more: Any) -> Any:
        return None if name in ("duckdb", "prompt_toolkit", "xlsxwriter") else real(name, *more)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)


def test_with_sql_nothing_is_said() -> None:
    assert why_no_sql() is None
    assert _sql_probe() is None
    need_sql("xlsxwriter")


@pytest.mark.usefixtures("without_sql")
async def test_a_query_is_refused_and_the_package_is_named(tmp_path: Path) -> None:
    async def choose() -> Any:
        raise AssertionError("no sandbox is looked for")

    processes = QueryProcesses(tmp_path, choose, QueryLimits())
    with pytest.raises(Environment, match="SQL is not installed with this odfd") as refused:
        async with processes.one():
            raise AssertionError("a process was lent")
    assert refused.value.rule == SQL_MISSING
    assert "odfd-sql" in refused.value.hint
    probe = _sql_probe()
    assert probe is not None
    assert (probe.result, probe.message) == ("ok", str(refused.value))


@pytest.mark.usefixtures("without_sql")
def test_a_spreadsheet_is_refused_as_well(tmp_path: Path) -> None:
    from odfd.cli.sql.output_file import _sheet

    with (tmp_path / "out.xlsx").open("wb") as out, pytest.raises(Environment, match="SQL is not installed"):
        _sheet(out, [("x", "int64")])

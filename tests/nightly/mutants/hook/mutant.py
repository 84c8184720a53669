"""Runs pytest with one file of the product replaced: a plugin, since plugins are loaded before anything of the tree.

What of the environment it reads: ``ODF_MUTANT`` is a JSON array of the file's path and the source to run in its place,
or empty for none; ``ODF_MUTANT_REPORT`` is the file that it writes at the end: whether the replaced source was run,
and the first exception of each test that failed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
from hypothesis import Phase, settings

_ran: list[str] = []
_failed: dict[str, str] = {}


def _replace(path: str, source: str) -> None:
    real = SourceFileLoader.get_code

    def get_code(loader: SourceFileLoader, name: str) -> CodeType | None:
        if os.path.realpath(loader.path) != path:
            return real(loader, name)
        _ran.append(name)
        return loader.source_to_code(source.encode(), path)  # never as bytecode

    SourceFileLoader.get_code = get_code


if given := os.environ.get("ODF_MUTANT"):
    _replace(*json.loads(given))


@pytest.hookimpl(trylast=True)
def pytest_configure() -> None:
    """The examples of ``make test``; what fails is not made smaller, which takes longer than to find it."""
    settings.register_profile("mutant", settings.get_profile("odfd"), phases=(Phase.explicit, Phase.generate))
    settings.load_profile("mutant")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Generator[None, Any, Any]:
    report = yield
    if report.failed and call.excinfo is not None and report.when != "teardown":
        kinds = [each.__name__ for each in _leaves(call.excinfo.value)]
        _failed.setdefault(item.nodeid, next(iter(kinds), "nothing"))
    return report


def _leaves(error: BaseException) -> list[type[BaseException]]:
    if isinstance(error, BaseExceptionGroup):
        return [kind for each in error.exceptions for kind in _leaves(each)]
    return [type(error)]


def pytest_sessionfinish(exitstatus: int) -> None:
    told = {"ran": bool(_ran), "failed": _failed}
    Path(os.environ["ODF_MUTANT_REPORT"]).write_text(json.dumps(told))

"""Fails tests that skip for want of a part that is required here, and says at the end which parts were missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from functools import cache

import pytest

from worlds.parts import Parts, load_parts

_load = cache(load_parts)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require", default="", help="parts of tests/parts.toml, or 'all', or 'nightly': a skip for want of one fails"
    )


def _names(config: pytest.Config) -> list[str]:
    return [name for name in config.getoption("--require").split(",") if name]


def pytest_configure(config: pytest.Config) -> None:
    try:
        _load().select(_names(config))
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None


def judge(report: pytest.TestReport | pytest.CollectReport, parts: Parts, names: list[str]) -> None:
    """Turns a skip that is not allowed into a failure."""
    if not names or not report.skipped or hasattr(report, "wasxfail") or not isinstance(report.longrepr, tuple):
        return
    reason = report.longrepr[2].removeprefix("Skipped: ")
    if (why := parts.blame(reason, names)) is not None:
        report.outcome = "failed"
        report.longrepr = f"skipped though {why}: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    judge(report, _load(), _names(item.config))
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    judge(report, _load(), _names(collector.config))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Names the parts for want of which tests were skipped, and how many: a green run says what it did not prove."""
    skipped = Counter[str]()
    for report in terminalreporter.stats.get("skipped", []):
        reason = str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else ""
        part = next((part for part in _load().parts if part.reason.search(reason) and not part.is_here()), None)
        if part is not None:
            skipped[f"{part.name}: {part.carries} ({part.source})"] += 1
    for words, count in skipped.items():
        terminalreporter.write_line(f"not proven, {count} skipped, for want of {words}", yellow=True)

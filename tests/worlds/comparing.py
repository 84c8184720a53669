"""Slices that differ are compared in the process of the test: another takes a third of a second for imports alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from odfd.trust.evidence.comparison_process import compare_here
from odfd.trust.evidence.row_diff import RowDifference
from odfd.trust.validation import recheck, reexecution


async def _compare(published: Path, computed: Path) -> RowDifference:
    return compare_here(published, computed)


@pytest.fixture
def compared_apart() -> None:
    """For tests that compare as a node does."""


@pytest.fixture(autouse=True)
def compared_here(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "compared_apart" not in request.fixturenames:
        for module in (recheck, reexecution):
            monkeypatch.setattr(module, "compare_in_process", _compare)

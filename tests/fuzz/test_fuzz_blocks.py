"""A short run of the fuzzer, so that the long one starts from code that works."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "fuzz_blocks.py"


@pytest.mark.slow
def test_twenty_thousand_mutants() -> None:
    spec = importlib.util.spec_from_file_location("fuzz_blocks", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    fuzzer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fuzzer)
    tally = fuzzer.Tally()
    fuzzer.fuzz(fuzzer.corpus(), 20_000, seed=1, tally=tally)
    assert tally.answers.total() == 20_000
    assert tally.answers["decoded"] > 1_000
    assert tally.known > 500
    assert len(tally.answers) > 8

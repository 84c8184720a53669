"""A short run of the fuzzer, so that the long one starts from code that works."""

from __future__ import annotations

import importlib.util
from pathlib import Path

SCRIPT = Path(__file__).parent / "fuzz_blocks.py"


def test_five_thousand_mutants() -> None:
    spec = importlib.util.spec_from_file_location("fuzz_blocks", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    fuzzer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fuzzer)
    answers = fuzzer.fuzz(fuzzer.corpus(), 5_000, seed=1)
    assert sum(answers.values()) == 5_000
    assert answers["decoded"] > 200
    assert len(answers) > 5

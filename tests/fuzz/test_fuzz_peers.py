"""Mutants of valid messages for every decoder of a peer's bytes: a value, or a fault that names its rule.

``ODFD_FUZZ`` says how many mutants each decoder is shown, ``ODFD_FUZZ_SEED`` which.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from worlds.mutation import walk
from worlds.peer_bytes import FAULTS, TARGETS, Target

MUTANTS = int(os.environ.get("ODFD_FUZZ", "350"))
SEED = int(os.environ.get("ODFD_FUZZ_SEED", "1"))


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_a_peers_bytes_are_a_value_or_a_fault(target: Target, tmp_path: Path) -> None:
    rules = set()

    with target.open(tmp_path) as decode:

        def decodes(raw: bytes) -> bool:
            try:
                decode(raw)
            except FAULTS as fault:
                rules.add(fault.rule)
                return False
            except Exception as error:
                raise AssertionError(f"{type(error).__name__} for {raw[:500].hex()} ({len(raw)} bytes)") from error
            return True

        assert sum(map(decodes, target.parents)), f"no valid message to begin from: {rules}"
        walk(target.parents, MUTANTS // target.dear, SEED, decodes)
    assert rules, "no mutant was refused: nothing is tried here"
    assert "" not in rules, "a fault that names no rule"

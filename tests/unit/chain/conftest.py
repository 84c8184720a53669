"""Golden chains, read once per run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from chain.codec.blocks import decode_block
from chain.model.block import Block

GOLDEN = Path(__file__).parents[2] / "golden"


@pytest.fixture(scope="session")
def golden() -> Path:
    return GOLDEN


@pytest.fixture(scope="session")
def vectors() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((GOLDEN / "vectors.json").read_text())
    return found


@pytest.fixture(scope="session")
def golden_chains() -> dict[str, list[Block]]:
    """Chains made by the reference, oldest block first, by the dataset's name."""
    chains = {}
    for folder in sorted((GOLDEN / "kamu").iterdir()):
        found = [decode_block(path.read_bytes()) for path in (folder / "blocks").iterdir()]
        chains[folder.name] = sorted(found, key=lambda block: block.sequence_number)
    return chains

"""What an input costs doubles, and no more, when a dimension of it doubles: columns, names, levels, rows, manifests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from worlds import counted_work, growing_inputs

TESTS = Path(__file__).parents[1]
MOST = 2.25
"""Times that the cost may grow when a dimension doubles: sorting costs a little more than twice."""
PATIENCE = 600


@pytest.fixture(scope="module")
def costs() -> dict[str, list[int]]:
    """Counted in a process of its own, as modules are rewritten while they are imported."""
    command = [sys.executable, "-m", "worlds.counted_work", growing_inputs.__name__]
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)])}
    done = subprocess.run(command, cwd=TESTS, env=env, stdout=subprocess.PIPE, timeout=PATIENCE, check=True)
    return dict(map(json.loads, done.stdout.splitlines()))


@pytest.mark.slow
@pytest.mark.parametrize("case", growing_inputs.CASES)
def test_twice_the_input_costs_twice(case: str, costs: dict[str, list[int]]) -> None:
    """Attack T-BYTES-01: a block, file, manifest, statement or policy with very many columns, names, members, inputs or
    groups, to keep threads busy after the reader has left.

    Defence: work grows as its input does, in each dimension; a block has at most 131,072 parts, a schema of ours and a
    file 10,000 columns.
    """
    one, two, four = costs[case]
    assert one > 100, "too little was counted to say how it grows"
    assert two <= MOST * one, costs[case]
    assert four <= MOST * two, costs[case]


def test_what_is_quadratic_in_c_is_seen() -> None:
    """The way of counting is worth nothing if it does not see what the tests above are about."""
    room: dict[str, Callable[[list[int]], object]] = {}
    source = "def work(names): return [name for name in names if names.count(name) > 1 or name in names[1:]]"
    exec(counted_work.rewritten(source, "quadratic"), room)
    one, two, four = (counted_work.cost(lambda size=size: room["work"](list(range(size)))) for size in (100, 200, 400))
    assert two > 3 * one
    assert four > 3 * two

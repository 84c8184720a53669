"""A hundred seeded lives of a store, each with one fault: killed, power or disk failed, full, cut short, unreadable.

Whatever happened, the store reopens in the state before or after the operation that was hit, everything in it is whole,
nothing staged is left, and the rest of the program runs to the same end as if nothing had been.
ODFD_FAULT_RUNS=5000 makes it a long run.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from chain.store.collect import collect
from worlds.power import PowerDisk

RUNS = int(os.environ.get("ODFD_FAULT_RUNS", "100"))
SEED = 7
"""A life that comes through most steps."""
REPORT = os.environ.get("ODFD_FAULT_REPORT")
"""A folder for what was hit how often, when a long run wants to tell."""


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(10))
def test_a_fault_anywhere_leaves_the_old_state_or_the_new(batch: int, tmp_path: Path, life: Any, sources: Path) -> None:
    ends: Counter[str] = Counter()
    for seed in range(batch, RUNS, 10):
        program = life.Program(seed, sources)
        states, steps = life.run_well(tmp_path / "well", program)
        lot = random.Random(seed)
        way, at = life.WAYS[seed // 10 % len(life.WAYS)], lot.randrange(1, len(steps) + 1)
        directory = tmp_path / "hit"
        code, words = life.run_in_child(directory, program, way, at)
        story = f"seed {seed}: {way} at step {at} ({steps[at - 1]}), ended with {code} after {words}"
        assert code in (0, life.KILLED, life.FAILED), story
        done = words.count(".")
        with life.opened(directory) as store:
            now = store.state()
            assert now in states[done : done + 2], story
            life.check_whole(store)
            for number in range(done if now == states[done] else done + 1, life.OPERATIONS):
                program.operate(store, number)
            assert store.state() == states[-1], story
            life.check_whole(store)
        with life.opened(directory) as store:
            collect(store.chains, store.objects)
            assert collect(store.chains, store.objects, dry_run=True).objects == 0, story
            life.check_whole(store)
        ends[f"{way} {steps[at - 1]} {'met' if code or '!' in words else 'passed'}"] += 1
        for folder in ("well", "hit"):
            shutil.rmtree(tmp_path / folder)
    assert any(end.endswith("met") for end in ends), "no life met a fault"
    if REPORT:
        (Path(REPORT) / f"{batch}.json").write_text(json.dumps(ends))


@pytest.mark.slow
def test_whenever_the_power_fails_the_old_state_is_there_or_the_new(tmp_path: Path, life: Any, sources: Path) -> None:
    """At each step of one life, with all lost that was not synced, and with some of it kept."""
    program, lot = life.Program(SEED, sources), random.Random(SEED)
    states, steps = life.run_well(tmp_path / "well", program)
    directory = tmp_path / "hit"
    directory.mkdir()
    disk, found, seen = PowerDisk(directory), [], 0

    def step(name: str) -> None:
        found.extend((name, disk.image(tmp_path / f"{len(found)}-{way}", way)) for way in (None, lot))

    for number in range(life.OPERATIONS):
        with disk.watching(), life.opened(directory, step) as store:
            program.operate(store, number, step)
            step("done")
            least = len(found) - 2
        step("closed")
        for place, (name, image) in enumerate(found):
            with life.opened(image) as store:
                story = f"power lost at {name} of operation {number}"
                assert store.state() in states[number + (place >= least) : number + 2], story
                life.check_whole(store)
            shutil.rmtree(image)
        seen += len(found)
        found.clear()
    assert seen >= 2 * len(steps), "the power did not fail at each step"

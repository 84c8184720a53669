"""Seeded lives of a store, each with one fault: killed, power or disk failed, full, cut short, unreadable.

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

import pytest

from chain.store.collect import collect
from worlds import store_life
from worlds.power import PowerDisk

RUNS = int(os.environ.get("ODFD_FAULT_RUNS", "36"))
SEED = 7
"""A life that comes through most steps."""
REPORT = os.environ.get("ODFD_FAULT_REPORT")
"""A folder for what was hit how often, when a long run wants to tell."""


@pytest.mark.slow
@pytest.mark.parametrize("way", store_life.WAYS)
def test_a_fault_anywhere_leaves_the_old_state_or_the_new(way: str, tmp_path: Path, sources: Path) -> None:
    """Attack T-DISK-02: a kill, a full, failing or unreadable disk, or a partial write, at any durable step.

    Defence: objects are durable before the head that names them; one transaction moves the head; staged data is
    discarded.
    """
    ends: Counter[str] = Counter()
    for seed in range(store_life.WAYS.index(way), RUNS, len(store_life.WAYS)):
        program = store_life.Program(seed, sources)
        states, steps = store_life.run_well(tmp_path / "well", program)
        lot = random.Random(seed)
        at = lot.randrange(1, len(steps) + 1)
        directory = tmp_path / "hit"
        code, words = store_life.run_in_child(directory, program, way, at)
        story = f"seed {seed}: {way} at step {at} ({steps[at - 1]}), ended with {code} after {words}"
        assert code in (0, store_life.KILLED, store_life.FAILED), story
        done = words.count(".")
        with store_life.opened(directory) as store:
            now = store.state()
            assert now in states[done : done + 2], story
            store_life.check_whole(store)
            for number in range(done if now == states[done] else done + 1, store_life.OPERATIONS):
                program.operate(store, number)
            assert store.state() == states[-1], story
            store_life.check_whole(store)
        with store_life.opened(directory) as store:
            collect(store.chains, store.objects)
            assert collect(store.chains, store.objects, dry_run=True).objects == 0, story
            store_life.check_whole(store)
        ends[f"{way} {steps[at - 1]} {'met' if code or '!' in words else 'passed'}"] += 1
        for folder in ("well", "hit"):
            shutil.rmtree(tmp_path / folder)
    assert any(end.endswith("met") for end in ends), "no life met a fault"
    if REPORT:
        (Path(REPORT) / f"{way}.json").write_text(json.dumps(ends))


@pytest.mark.slow
def test_whenever_the_power_fails_the_old_state_is_there_or_the_new(tmp_path: Path, sources: Path) -> None:
    """At each step of one life, with all lost that was not synced, and with some of it kept."""
    program, lot = store_life.Program(SEED, sources), random.Random(SEED)
    states, steps = store_life.run_well(tmp_path / "well", program)
    directory = tmp_path / "hit"
    directory.mkdir()
    disk, seen = PowerDisk(directory), 0
    found: list[tuple[str, Path]] = []

    def step(name: str) -> None:
        found.extend((name, disk.image(tmp_path / f"{len(found)}-{way}", way)) for way in (None, lot))

    for number in range(store_life.OPERATIONS):
        with disk.watching(), store_life.opened(directory, step) as store:
            program.operate(store, number, step)
            step("done")
            least = len(found) - 2
        step("closed")
        for place, (name, image) in enumerate(found):
            with store_life.opened(image) as store:
                story = f"power lost at {name} of operation {number}"
                assert store.state() in states[number + (place >= least) : number + 2], story
                store_life.check_whole(store)
            shutil.rmtree(image)
        seen += len(found)
        found.clear()
    disk.close()
    assert seen >= 2 * len(steps), "the power did not fail at each step"

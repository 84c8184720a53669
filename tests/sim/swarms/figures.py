"""Prints the table of ``docs/scale.md#swarms``: ``python tests/sim/swarms/figures.py [SEED]``."""

from __future__ import annotations

import sys

from conftest import load


def main(seed: int) -> None:
    """Each row as soon as it is known."""
    swarms = load()
    rows = {
        "all honest": swarms.Plan(),
        "ten lie": swarms.Plan(liars=10),
        "twenty leave, and as many others come": swarms.Plan(leaving=20),
        "ten lie, twenty leave": swarms.Plan(liars=10, leaving=20),
        "the publisher offers all to everybody": swarms.Plan(offers=False),
        "16 of one object of 64 MiB": swarms.DividedPlan(mirrors=16),
        "the same, two lie, four leave": swarms.DividedPlan(mirrors=16, liars=2, leaving=4),
        "the same, undivided": swarms.Plan(mirrors=16, blocks=1, size=64 << 20),
    }
    for name, plan in rows.items():
        world = swarms.World(seed, plan).run()
        least = plan.blocks * plan.size / plan.publisher_up
        print(f"| {name} | {world.copies:.2f} | {world.seconds:.0f} | {world.central:,.0f} | {least:.0f} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1)

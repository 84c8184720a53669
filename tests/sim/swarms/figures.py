"""Prints how a dataset spreads among mirrors: ``PYTHONPATH=tests python -m sim.swarms.figures [SEED]``."""

from __future__ import annotations

import sys

from sim.swarms.world import DividedPlan, Plan, World


def main(seed: int) -> None:
    """Each row as soon as it is known."""
    rows = {
        "all honest": Plan(),
        "ten lie": Plan(liars=10),
        "twenty leave, and as many others come": Plan(leaving=20),
        "ten lie, twenty leave": Plan(liars=10, leaving=20),
        "the publisher offers all to everybody": Plan(offers=False),
        "16 of one object of 64 MiB": DividedPlan(mirrors=16),
        "the same, two lie, four leave": DividedPlan(mirrors=16, liars=2, leaving=4),
        "the same, undivided": Plan(mirrors=16, blocks=1, size=64 << 20),
    }
    for name, plan in rows.items():
        world = World(seed, plan).converge()
        least = plan.blocks * plan.size / plan.publisher_up
        print(f"| {name} | {world.copies:.2f} | {world.seconds:.0f} | {world.central:,.0f} | {least:.0f} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1)

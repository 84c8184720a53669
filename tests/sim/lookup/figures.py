"""Prints the rows of docs/scale.md: ``python tests/sim/lookup/figures.py [NODES] [SEED]``. 10,000 nodes take an hour.

At sizes beyond 1,000 the nodes that are neither asked to seek nor to publish only answer, and tables begin as they are
after long. Idle traffic is then measured in two runs of their own, in which few nodes do upkeep.
"""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = Path(__file__).parents[2]


def main() -> None:
    sys.path[:0] = [str(TESTS), str(TESTS.parent)]
    from worlds.packages import load

    kad = load(Path(__file__).parent / "kad", "trial", "table")
    nodes = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    whole = {"minutes": 10, "measured": 10, "published": 10} if nodes <= 1000 else {
        "minutes": 1, "measured": 3, "published": 0, "upkeep": 0.0, "stale": 0.2,
    }  # fmt: skip
    attacked = {**whole, "eclipses": 20, "attackers": 60, "attack_blocks": 60, "sought": 20}
    part = 1.0 if nodes <= 1000 else 80 / nodes
    few = {"upkeep": part, "upkeep_of_new": part, "sought": 1, "seekers": 1}
    idle = {"minutes": 2, "measured": 5, "stale": 0.15, **few}
    print("| nodes | lookup | found | p50 s | p99 s | reached, p99 s | asked | KiB/s idle | KiB |")
    for name, plan in (
        ("lookup", whole), ("stock Kademlia", {**whole, "stock": True}),
        ("lookup, keys attacked", attacked), ("stock Kademlia, keys attacked", {**attacked, "stock": True}),
        ("lookup, idle", idle), ("stock Kademlia, idle", {**idle, "stock": True}),
    ):  # fmt: skip
        outcome = kad.trial.Trial(seed, kad.world.Plan(nodes=nodes, **plan)).run()
        print(kad.table.row(f"{nodes:,} | {name}", outcome), flush=True)
        if "idle" in name:
            print(kad.table.costs(outcome), flush=True)


if __name__ == "__main__":
    main()

"""Prints figures of the lookup: ``PYTHONPATH=tests python -m sim.lookup.figures [NODES] [SEED ...]``.

10,000 nodes take minutes. Three ways to find the holder of a dataset are compared on the same seeds: the lookup, stock
Kademlia, and gossip of all presences. Nodes that are neither asked to seek nor to publish only answer, and all begin
with what they know after a long time. Idle traffic is measured in runs of their own, in which few nodes do upkeep.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from sim.lookup.trial import HEAD, Outcome, Trial, costs, row
from sim.lookup.world import Plan

WAYS = {"lookup": "lookup", "stock": "stock Kademlia", "gossip": "full gossip"}
SOUGHT: dict[str, Any] = {"minutes": 1, "measured": 3, "published": 0, "upkeep": 0.0, "stale": 0.2}
IDLE: dict[str, Any] = {"minutes": 2, "measured": 5, "stale": 0.15, "sought": 1, "seekers": 1}
KEPT = 80
"""Nodes that do upkeep where idle traffic is measured; those of gossip all do."""
ATTACKED = {"attackers": 60, "attack_blocks": 60}
POISONED = {"poisoners": 24}
SEEKS = 500


def main() -> None:
    nodes = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    seeds = [int(seed) for seed in sys.argv[2:]] or [1]
    print(HEAD, flush=True)
    for way, name in WAYS.items():
        outcome = sought(nodes, seeds, way=way)
        idle = runs(nodes, seeds, **IDLE, way=way, upkeep=min(1.0, KEPT / nodes), upkeep_of_new=KEPT / nodes)
        outcome.idle, outcome.memory = idle.idle, idle.memory
        print(row(f"{nodes:,} | {name}", outcome), flush=True)
        print(costs(idle, len(seeds)), flush=True)
    keys = max(1, min(20, nodes // 500))  # so that attackers are few beside the others
    of_keys = {"sought": keys, "eclipses": keys, "seekers": SEEKS // keys}
    for name, attack, ways in (("attacked", ATTACKED, ("lookup", "stock")), ("poisoned", POISONED, WAYS)):
        for way in ways:
            outcome = sought(nodes, seeds, **attack, **of_keys, way=way)
            print(row(f"{nodes:,} | {WAYS[way]}, keys {name}", outcome), flush=True)


def sought(nodes: int, seeds: Sequence[int], **plan: Any) -> Outcome:
    outcome = runs(nodes, seeds, **SOUGHT, **plan)
    outcome.memory = 0  # of a network in which nobody else announces
    return outcome


def runs(nodes: int, seeds: Sequence[int], **plan: Any) -> Outcome:
    whole = Outcome()
    for seed in seeds:
        whole.add(Trial(seed, Plan(nodes=nodes, **plan)).converge())
    return whole


if __name__ == "__main__":
    main()

"""Hundreds of nodes that know a few others each, and what a node pays when the network and its datasets grow.

``ODF_SOAK`` goes on to a thousand peers and a thousand datasets.
"""

from __future__ import annotations

import math
import os
from types import ModuleType
from typing import Any

import pytest

from p2p.machines import reconcile
from p2p.ports import PeerId
from p2p.wire import trust

pytestmark = pytest.mark.slow
SOAK = "ODF_SOAK" in os.environ
DEGREE = 8
PEERS = (25, 100, 400, 1000) if SOAK else (25, 150)
DATASETS = (10, 100, 1000) if SOAK else (10, 100)


def test_two_hundred_nodes_agree_though_forty_lie(swarm: ModuleType) -> None:
    plan = swarm.world.Plan(
        nodes=200, liars=40, datasets=2, heads=1, blocks=4, degree=DEGREE, loss=0.02, doubling=0.02, cuts=40, crashes=40
    )
    world = swarm.world.World(1, plan)
    world.converge()
    assert {node.lie for node in world.nodes.values()} == {"", *swarm.node.LIES}


def quiet(swarm: ModuleType, nodes: int, datasets: int, degree: int | None) -> Any:
    """Nothing is lost and nobody lies: what is paid is the protocol's own price."""
    plan = swarm.world.Plan(nodes, 0, datasets, heads=1, blocks=1, degree=degree, things=(700,))
    world = swarm.world.World(3, plan)
    world.converge()
    return world


def test_what_a_node_pays_for_a_head_does_not_grow_with_the_network(swarm: ModuleType) -> None:
    paid = {}
    for nodes in PEERS:
        world = quiet(swarm, nodes, 1, DEGREE)
        (told_at,) = world.told_at.values()
        paid[nodes] = {what: world.sent[what] / nodes for what in ("gossip", "question", "answer")}
        assert paid[nodes]["gossip"] <= 2 * DEGREE
        heard = max(at - told_at for node in world.honest for at in node.heard_at.values())
        hops = 2 + math.log(nodes, DEGREE / 2)
        assert heard <= hops * swarm.world.LATENCY[1], f"{nodes} nodes: the last heard of it after {heard:.2f} s"
    first, *_, last = paid.values()
    assert all(last[what] <= 2 * first[what] for what in last), paid


def test_an_idle_round_does_not_grow_with_the_datasets(swarm: ModuleType) -> None:
    """One question; its answer is a sum for each bucket, and there are 256 of these. News cost three questions."""
    for datasets in DATASETS:
        one, other, _ = quiet(swarm, 3, datasets, None).honest
        assert asked(one, other) == ["SumAsk"]
        newest = max(other.board)
        del one.board[newest]
        assert asked(one, other) == ["SumAsk", "ListAsk", "GetAsk"]


def asked(one: Any, other: Any) -> list[str]:
    """The questions of a round of anti-entropy; no answer is larger than the sums of all buckets."""
    machine = reconcile.Reconcile(one.refs())
    effects, questions = machine.start(), []
    while effects:
        match effects.pop(0):
            case reconcile.Fetch(ask):
                questions.append(type(ask).__name__)
                told = trust.encode(reconcile.answer(ask, other.refs, other.envelope))
                assert len(told) <= 256 * 80
                effects += machine.handle(trust.decode_tell(told))
            case reconcile.Show(statements):
                for signed in statements:
                    one.learn(signed.envelope, PeerId("n1"))
            case reconcile.Done():
                pass
    return questions

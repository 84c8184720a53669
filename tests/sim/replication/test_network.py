"""Nodes replicate in a storm of lost, doubled and late messages, cut links, crashes and liars; then all agree.

    n0 (publisher) --- n1 (publisher?) --- n2 … in small worlds everyone is linked with everyone; some lie

Hundreds of nodes know a few others each; there, what a node pays is looked at as the network and its datasets grow.
``ODF_SOAK`` goes on to a thousand peers and a thousand datasets.
"""

from __future__ import annotations

import math
import os
from functools import partial
from random import Random

import pytest

from p2p.budget.buckets import Rate, Relaying
from p2p.driver.discovery import LIFETIME, RENEW, SAMPLE
from p2p.driver.settings import ReplicationSettings
from p2p.machines import reconcile, transfer
from p2p.machines.holder_connections import ENOUGH
from p2p.machines.transfer import PartTransfer, TransferShape
from p2p.peers.book import FLOOD
from p2p.peers.directory import MAX_PRESENCES
from p2p.ports import PeerId
from p2p.wire import trust
from sim.kernel import batches, hold, share
from sim.replication import transfers
from sim.replication.network import LATENCY, LIES, Node, Plan, World
from sim.replication.transfers import ChainRun, ObjectRun

SOAK = "ODF_SOAK" in os.environ
DEGREE = 8
PEERS = (25, 100, 400, 1000) if SOAK else (25, 150)
DATASETS = (10, 100, 1000) if SOAK else (10, 100)


@pytest.mark.slow
@pytest.mark.parametrize("batch", batches(25), ids=str)
def test_honest_nodes_converge(batch: range) -> None:
    hold(batch, World)


def test_a_seed_tells_all() -> None:
    """The same seed is the same world, to the last tick."""
    one, other = World(11), World(11)
    assert (one.converge(), one.end) == (other.converge(), other.end)


def test_worlds_hold_what_they_should() -> None:
    """Liars of every kind and losses do occur among the seeds: a storm that never blows proves nothing."""
    worlds = list(map(World, range(60)))
    assert {node.lie for world in worlds for node in world.nodes.values()} == {"", *LIES}
    assert {world.plan.loss for world in worlds} == {0.0, 0.02, 0.15}
    assert {world.plan.crashes for world in worlds} == {0, 1, 2, 3}


# Many nodes


@pytest.mark.slow
def test_two_hundred_nodes_agree_though_forty_lie() -> None:
    plan = Plan(
        nodes=200, liars=40, datasets=2, heads=1, blocks=4, degree=DEGREE, loss=0.02, doubling=0.02, cuts=40, crashes=40
    )
    world = World(1, plan)
    world.converge()
    assert {node.lie for node in world.nodes.values()} == {"", *LIES}


def quiet(nodes: int, datasets: int, degree: int | None) -> World:
    """Nothing is lost and nobody lies: what is paid is the protocol's own price."""
    world = World(3, Plan(nodes, 0, datasets, heads=1, blocks=1, degree=degree, things=(700,)))
    world.converge()
    return world


@pytest.mark.slow
def test_what_a_node_pays_for_a_head_does_not_grow_with_the_network() -> None:
    paid = {}
    for nodes in PEERS:
        world = quiet(nodes, 1, DEGREE)
        (told_at,) = world.told_at.values()
        paid[nodes] = {what: world.links.sent[what] / nodes for what in ("gossip", "question", "answer")}
        assert paid[nodes]["gossip"] <= 2 * DEGREE
        heard = max(at - told_at for node in world.honest for at in node.heard_at.values())
        hops = 2 + math.log(nodes, DEGREE / 2)
        assert heard <= hops * LATENCY[1], f"{nodes} nodes: the last heard of it after {heard:.2f} s"
    first, *_, last = paid.values()
    assert all(last[what] <= 2 * first[what] for what in last), paid


@pytest.mark.slow
def test_an_idle_round_does_not_grow_with_the_datasets() -> None:
    """One question; its answer is a sum for each bucket, and there are 256 of these. News cost three questions."""
    for datasets in DATASETS:
        one, other, _ = quiet(3, datasets, None).honest
        assert asked(one, other) == ["SumAsk"]
        newest = max(other.board)
        del one.board[newest]
        assert asked(one, other) == ["SumAsk", "ListAsk", "GetAsk"]


def asked(one: Node, other: Node) -> list[str]:
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


# Floods


def flooded(seed: int) -> World:
    """Three free keys flood a small network with statements that are valid."""
    looks = Rate(per_second=5.0, burst=40.0)
    return World(
        seed, Plan(nodes=9, liars=4, floods=3, datasets=1, heads=2, blocks=3, degree=5, things=(10,), looks=looks)
    )


def honest_overruns(world: World) -> dict[str, int]:
    return {node.name: world.overruns[node.name] for node in world.honest if world.overruns[node.name]}


@pytest.mark.slow
@pytest.mark.parametrize("seed", share(5, 1 / 40))
def test_no_honest_relay_of_a_flood_is_blamed(seed: int) -> None:
    """Attack T-PEER-05: floods, late answers and relayed messages in any order, to lower an honest node's score at
    another.

    Defence: in each world of the simulator, honest nodes penalise each other at most for lost answers.

    No honest node's score at another falls through anything that others send, but for what a lost answer costs. The
    simulator itself fails where an honest node accuses an honest one (``Node.blame``); here relays are looked at.
    """
    world = flooded(seed)
    world.converge()
    assert world.overruns.total() > 1000, "it floods"
    assert not honest_overruns(world), "what one relays is capped at the relay"
    for node in world.honest:
        for other in world.honest:
            assert not node.book.is_shut_out(other.name, node.clock())


# The simulator can fail


def staged_is_held(run: ChainRun) -> transfer.Input:
    run.held.extend(run.staged)
    run.staged.clear()
    return transfer.Finished()


def part_is_shown(run: ObjectRun) -> transfer.Input:
    run.node.things[run.name] = bytes(run.part)
    return transfer.Finished()


def forgetful(start: int, target: int, shape: TransferShape, chance: object, *, inherited: bool) -> PartTransfer:
    return PartTransfer(start, target, shape, chance, inherited=False)  # type: ignore[arg-type]


CRASHING = Plan(nodes=4, liars=0, datasets=1, heads=4, blocks=40, crashes=25, loss=0.02, things=(700, 3000))


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("where", "name", "broken", "found", "plan"),
    [
        (ChainRun, "finish", staged_is_held, "was never published", None),
        (ObjectRun, "finish", part_is_shown, "shows wrong bytes", None),
        (ChainRun, "shows", lambda *_: True, "accuses the honest", None),
        (transfers, "PartTransfer", forgetful, "accuses the honest", CRASHING),
    ],
    ids=["chains unchecked", "objects unchecked", "who holds what was given up is blamed", "lost writes are blamed"],
)
def test_a_broken_rule_is_noticed(
    monkeypatch: pytest.MonkeyPatch, where: object, name: str, broken: object, found: str, plan: Plan | None
) -> None:
    monkeypatch.setattr(where, name, broken)
    with pytest.raises(AssertionError, match=found):
        hold(range(60), partial(World, plan=plan))


@pytest.mark.nightly
def test_a_relay_without_a_cap_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Relaying, "passes", lambda *_: True)
    world = flooded(1)
    world.converge()
    assert honest_overruns(world)


@pytest.mark.nightly
def test_blaming_volume_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Relaying, "passes", lambda *_: True)
    monkeypatch.setattr(Node, "overrun_by", lambda node, sender: node.blame(sender, FLOOD))
    with pytest.raises(AssertionError, match="accuses the honest"):
        flooded(1).converge()


# Who meets whom in large networks, as models: over connections that nodes keep, and by presences that they swap.
# ``ODF_SOAK`` runs more worlds, and a thousand nodes that swap presences.

MINUTE = ReplicationSettings(network="x").entropy_interval
NODES = 10_000
KNOWN = MAX_PRESENCES / NODES
"""The part of all that a directory holds; six peers that are asked know as much each, and not the same."""
WORLDS = 40 if SOAK else 2
ROUNDS = 3
"""Attempts to meet others: at once, a minute and three minutes later."""


class Company:
    """Node 0 publishes; it and ``mirrors`` others want one dataset, and the rest does not.

    Nobody passes on what it does not want; a node knows of 4,096 presences; those who serve the dataset are met by lot,
    two at first and one more with each later attempt, as ``p2p.machines.holder_connections`` asks for them. Words are
    followed from the publisher: to its neighbours, from whoever wants the dataset to those neighbours who do, and over
    one node between that does not want it, as it sends on to who is known to.
    """

    def __init__(self, mirrors: int, lot: Random) -> None:
        self.lot = lot
        self.links: list[set[int]] = [set() for _ in range(NODES)]
        for one in range(NODES):
            for _ in range(DEGREE):
                self.join(one, lot.randrange(NODES))
        self.wants = {0, *lot.sample(range(1, NODES), mirrors)}

    def join(self, one: int, other: int) -> None:
        if one != other:
            self.links[one].add(other)
            self.links[other].add(one)

    def attempt(self) -> None:
        for one in sorted(self.wants):
            serving = self.links[one] & self.wants
            others = sorted(self.wants - self.links[one] - {one})
            told = [each for each in others if self.lot.random() < 1 - (1 - KNOWN) ** 7]
            for other in self.lot.sample(told, min(len(told), max(1, ENOUGH - len(serving)))):
                self.join(one, other)

    def reached(self) -> set[int]:
        """Who hears what node 0 says."""
        hears, edge = {0}, [0]
        while edge:
            found: set[int] = set()
            for one in edge:
                near = self.links[one]
                found |= near & self.wants
                if one == 0:  # all its neighbours hear it, and send it on to who wants it
                    found |= {far for each in near for far in self.links[each] & self.wants}
            edge = sorted(found - hears)
            hears |= found
        return hears


@pytest.mark.slow
@pytest.mark.parametrize("mirrors", [1, 2, 5, 10, 100, 1000])
def test_all_who_want_a_dataset_hear_its_publisher_after_three_attempts(mirrors: int) -> None:
    """In a network of 10,000 nodes they hang together over the connections that each keeps to others."""
    for seed in range(WORLDS):
        company = Company(mirrors, Random(seed))
        for _ in range(ROUNDS):
            company.attempt()
        assert company.reached() >= company.wants, f"seed {seed}"


def test_without_company_a_mirror_hears_nothing() -> None:
    company = Company(10, Random(1))
    assert len(company.reached() & company.wants) < 10


def known(nodes: int, seconds: float, seed: int = 1) -> list[int]:
    """How many presences that have not ended each node knows then; each knew its neighbours at the start."""
    lot = Random(seed)
    links = [[lot.randrange(nodes) for _ in range(DEGREE)] for _ in range(nodes)]
    offsets = [lot.uniform(0, RENEW) for _ in range(nodes)]
    issued: list[dict[int, float]] = [{} for _ in range(nodes)]
    for minute in range(int(seconds / MINUTE)):
        now = minute * MINUTE
        for one in range(nodes):
            issued[one][one] = now - (now + offsets[one]) % RENEW
        for one in range(nodes):
            other = lot.choice(links[one])
            for teller, hearer in ((one, other), (other, one)):
                names = list(issued[teller])
                told = [teller, *(lot.choice(names) for _ in range(SAMPLE))]
                book = issued[hearer]
                for name in told:
                    at = issued[teller][name]
                    if at > now - LIFETIME and at > book.get(name, -LIFETIME):
                        if name not in book and len(book) >= MAX_PRESENCES:
                            del book[next(iter(book))]
                        book[name] = at
        if minute % 10 == 9:
            issued = [{name: at for name, at in book.items() if at > now - LIFETIME} for book in issued]
    return [len(book) for book in issued]


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [20, 100, *([1000] if SOAK else [])])
def test_all_of_a_network_know_each_other_without_gossip(nodes: int) -> None:
    """Each minute a node swaps its own presence and a sample with a neighbour."""
    assert min(known(nodes, 10_800)) >= 0.98 * nodes

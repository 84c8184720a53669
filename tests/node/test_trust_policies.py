"""Policies of some datasets as resources: what has to hold of them before they are used or passed on here."""

from __future__ import annotations

import msgspec
import pytest

from chain.errors import Fault
from config import model
from odfd.policy.policy import parse_expression
from worlds.eventually import became
from worlds.manifests import ROOT
from worlds.node_world import Node, World

STRICT = """$schema: TrustPolicy
headers: {{name: {name}}}
spec: {{datasets: ["{datasets}"], {terms}, priority: {priority}}}
"""
LISTED = "did:key:z6MkiTBz1ymuepAQ4HEHYSF1H8quG5GLVVQR3djdX3mDooWp"
TRUSTING = model.Policy(validators=model.Validators(f=0))
VALIDATOR = f"$schema: Validator\nheaders: {{name: uni}}\nspec: {{did: {LISTED}}}\n"


def strict(datasets: str, terms: str = 'use: "data & observed:1"', name: str = "strict", priority: int = 0) -> str:
    return STRICT.format(name=name, datasets=datasets, terms=terms, priority=priority)


async def relied_on(node: Node, name: str) -> tuple[str, int]:
    dataset = node.dataset(name)
    return str(node.parts.evaluator.use(dataset)), (await node.api.trust.show(name)).reach.use


async def test_a_policy_of_some_datasets_decides_for_them_alone_and_until_it_is_deleted(world: World) -> None:
    world.write("alice", "a.csv", "2024-01-01T00:00:00Z,Graz,300000")
    async with world.running("alice") as alice, world.running("bob", TRUSTING) as bob:
        await alice.apply(ROOT)
        await alice.pull("cities")
        await world.spread(alice, "cities")
        await bob.mirror(alice.dataset("cities"), "food.cities")
        await became(lambda: bob.size("food.cities") == alice.size("cities"))
        whole = alice.size("cities")
        await bob.apply(VALIDATOR)
        before = await relied_on(bob, "food.cities")
        assert before == ("data", whole)
        (item,) = (await bob.apply(strict("food.%"))).items
        assert (item.kind, item.action) == ("trustpolicy", "created")
        await bob.parts.reconciler.wait_settled()
        assert await relied_on(bob, "food.cities") == ("data & observed:1", whole - 1)
        (rule,) = (await bob.api.policies.policy()).rules
        assert (rule.name, rule.datasets, rule.use, rule.serve) == ("strict", ("food.%",), "data & observed:1", None)
        await bob.api.applying.rename("Dataset", "food.cities", "cities")
        assert await relied_on(bob, "cities") == before, "another name is meant"
        await bob.api.applying.rename("Dataset", "cities", "food.cities")
        assert (await relied_on(bob, "food.cities"))[1] == whole - 1
    async with world.running("bob", TRUSTING) as bob:
        assert (await relied_on(bob, "food.cities"))[1] == whole - 1, "also after a restart"
        await bob.apply(strict("food.%", "use: chain", "loose", 5))
        await bob.parts.reconciler.wait_settled()
        assert await relied_on(bob, "food.cities") == ("chain", whole), "the higher priority decides"
        await bob.api.declarations.delete("trustpolicy", "loose")
        await bob.parts.reconciler.wait_settled()
        assert (await relied_on(bob, "food.cities"))[1] == whole - 1
        await bob.api.declarations.delete("trustpolicy", "strict")
        await bob.parts.reconciler.wait_settled()
        assert await relied_on(bob, "food.cities") == before


async def test_what_a_network_asks_holds_above_and_a_mirrors_own_terms_before(world: World) -> None:
    world.write("alice", "a.csv", "2024-01-01T00:00:00Z,Graz,300000")
    async with world.running("alice") as alice, world.running("bob", TRUSTING) as bob:
        await alice.apply(ROOT)
        await alice.pull("cities")
        await world.spread(alice, "cities")
        await bob.apply(VALIDATOR, strict("%", 'use: "data & observed:1", serve: "observed:1"'))
        await bob.mirror(alice.dataset("cities"), "theirs", use="data")
        await became(lambda: bob.size("theirs") == alice.size("cities"))
        await bob.parts.reconciler.wait_settled()
        evaluator, dataset = bob.parts.evaluator, bob.dataset("theirs")
        assert (str(evaluator.use(dataset)), str(evaluator.serve(dataset))) == ("data", "observed:1")
        floor = parse_expression("reproduced")
        bob.features.judgement.policy = msgspec.structs.replace(bob.parts.policy, floors=(floor, floor))
        assert (str(evaluator.use(dataset)), str(evaluator.serve(dataset))) == (
            "data & reproduced",
            "observed:1 & reproduced",
        )


async def test_a_quorum_that_nobody_can_reach_is_told_until_there_are_validators(world: World) -> None:
    async with world.running("alice", TRUSTING) as alice:
        await alice.apply(strict("food.%"))
        await alice.parts.reconciler.wait_settled()
        status = (await alice.api.declarations.get("trustpolicy", "strict")).status
        assert (status["phase"], status["code"]) == ("Failed", "quorum-unreachable")
        await alice.apply(VALIDATOR)
        await alice.parts.reconciler.wait_settled()
        assert (await alice.api.declarations.get("trustpolicy", "strict")).status["phase"] == "Ready"


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (strict("food.%", "use: sometimes"), "policy-expression"),
        (strict("food.%", "use: data", priority=101), "number-range"),
        (strict("", "use: data"), "trust-policy"),
        (strict("food.%").replace('use: "data & observed:1", ', ""), "trust-policy"),
    ],
)
async def test_what_a_policy_cannot_mean_is_refused_at_its_line(world: World, text: str, rule: str) -> None:
    async with world.running("alice") as alice:
        with pytest.raises(Fault) as refused:
            await alice.apply(text)
        assert refused.value.rule == rule

"""Policies of datasets and of networks: which is in force, for what, and what the doctor tells of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from chain import instant
from chain.errors import Fault, Invalid, NotFound, Refused
from chain.statements.keys import SigningKey
from chain.statements.statement import Rules
from config import model
from odfd.cli.commands.apply import roots_text
from odfd.control import wire
from odfd.network.joined_networks import Network, keep
from odfd.policy.policy import parse_expression
from odfd.policy.policy_merge import PoliciesByNetwork
from odfd.services.maintenance.probes import spare_text
from odfd.store.ledger import kinds
from odfd.store.shares import NetworkScopes
from worlds.eventually import became
from worlds.manifests import DERIVED, ROOT
from worlds.node_world import Node, World

# Policies of some datasets as resources: what has to hold of them before they are used or passed on here.


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


async def test_a_policy_of_labels_decides_for_what_has_them(world: World) -> None:
    world.write("alice", "a.csv", "2024-01-01T00:00:00Z,Graz,300000")
    policy = strict("%").replace('["%"]', "[{type: Dataset, name: '%', labels: {risk: {$in: [high, some]}}}]")
    async with world.running("alice") as alice, world.running("bob", TRUSTING) as bob:
        await alice.apply(ROOT)
        await alice.pull("cities")
        await world.spread(alice, "cities")
        await bob.mirror(alice.dataset("cities"), "cities")
        await became(lambda: bob.size("cities") == alice.size("cities"))
        whole = alice.size("cities")
        await bob.apply(VALIDATOR, policy)
        await bob.parts.reconciler.wait_settled()
        assert await relied_on(bob, "cities") == ("data", whole)
        await bob.api.declarations.label("dataset", "cities", wire.LabelRequest(labels={"risk": "high"}))
        assert await relied_on(bob, "cities") == ("data & observed:1", whole - 1)
        with pytest.raises(Invalid, match=r"datasets\[0\]: not a pattern of names: 'risk=high'"):
            await bob.apply(strict("risk=high"))


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


# What ``odfctl doctor`` tells of the policy in force, of roots that lie on this machine, and of witnesses.


ROWS = ("2024-01-01T00:00:00Z,Graz,300000", "2024-01-02T00:00:00Z,Linz,210000")


async def probed(node: Node) -> dict[str, wire.Probe]:
    return {probe.name: probe for probe in await node.api.about.doctor()}


@pytest.mark.parametrize(
    ("profile", "told"),
    [
        ("laptop", "laptop: uses what meets data, passes on what meets chain"),
        (
            "validator",
            "validator: uses what meets data & reproduced, passes on what meets data; "
            "counts verdicts of others from the sandbox image on",
        ),
    ],
)
async def test_the_policy_in_force_is_told(world: World, profile: str, told: str) -> None:
    async with world.running("bob", model.Policy(profile=profile)) as bob:
        found = (await probed(bob))["policy"]
        assert (found.result, found.message) == ("ok", told)


async def test_roots_on_this_machine_are_told(world: World) -> None:
    """Attack T-HEAD-05: a break-in on a machine whose owner did not know that root keys are on it.

    Defence: `odfctl doctor` names published datasets whose root key is on the machine, until it is taken offline.

    Of what is published: of a private dataset nobody else relies on the key.
    """
    async with world.running("bob", private=True) as bob:
        await bob.apply(ROOT)
        assert (await probed(bob))["roots"].result == "ok"
    async with world.running("alice") as alice:
        await alice.apply(ROOT)
        found = (await probed(alice))["roots"]
        assert (found.result, found.message) == (
            "warning",
            "root keys of published datasets are on this machine: cities",
        )
        assert found.hint.startswith("odfctl trust authority rotate cities --offline-key FILE")
        draft = await alice.api.authority.draft_authority("cities", wire.AuthorityDraftRequest(action="rotate"))
        request = wire.AuthorityRequest(payload=draft.payload, drop_key=True)
        await alice.api.authority.change_authority("cities", request)
        assert (await probed(alice))["roots"].result == "ok"


async def test_one_witness_less_is_told_before_it_is_gone(world: World) -> None:
    """Attack T-HEAD-06: witnesses that are taken down one by one, to stop readers.

    Defence: the owner is warned when the loss of one more witness would end the quorum; `odfctl trust show -o json`
    counts how many may be lost.
    """
    key = str(SigningKey(b"w" * 32).did)
    groups = (model.Group(name="w", keys=(key,)),)
    asks = model.Policy(witness=model.Witness(f=0, quorum=1, groups=groups))
    async with world.running("alice", asks) as alice:
        await alice.apply(ROOT)
        await world.spread(alice, "cities")
        found = (await probed(alice))["witnesses"]
        assert (found.result, found.message) == (
            "warning",
            "cities: 0 of the 1 witness groups asked for cosign it: readers stop",
        )
        assert (await alice.api.trust.show("cities")).witnesses_to_spare == -1
    async with world.running("carol") as carol:
        await carol.apply(ROOT)
        assert (await probed(carol))["witnesses"].message == "none are asked for by the policy in force"
        assert (await carol.api.trust.show("cities")).witnesses_to_spare is None


def test_witnesses_to_spare() -> None:
    assert (spare_text(2, 1), spare_text(0, None)) == ("", "")
    assert spare_text(2, 0) == "one witness group less would stop readers: 2 are asked for, and 2 cosign it"
    assert spare_text(3, -1) == "2 of the 3 witness groups asked for cosign it: readers stop"


def test_who_creates_datasets_is_told_where_their_keys_are() -> None:
    assert roots_text(["a"], "odfctl") == (
        "the root key of a is on this machine, not offline; "
        "odfctl trust authority rotate a --offline-key FILE moves it into FILE, to be put away"
    )
    assert roots_text(list("abcde"), "odfctl").startswith("the root keys of a, b, c and 2 more are on this machine")


async def test_what_was_imported_feeds_a_transform_as_policy_says(world: World, tmp_path: Path) -> None:
    """Attack T-VERDICT-05: a derived dataset of others that is imported from a folder or web server, past the policy of
    mirrors.

    Defence: an imported dataset is an input only as far as `use` reaches.

    A derived dataset of a stranger came as a folder: it is no more this node's own than a mirror is.
    """
    folder = tmp_path / "towns"
    async with world.running("alice") as alice:
        world.write("alice", "a.csv", *ROWS)
        await alice.apply(ROOT, DERIVED)
        await alice.pull()
        await alice.done(alice.api.flow.export("towns", wire.ExportRequest(to=str(folder))))
        assert alice.features.judgement.count_usable(alice.dataset("towns")) is None, (
            "what this node made itself it relies on"
        )
        size = alice.size("towns")
    for name, asked, usable in (("bob", "data & reproduced", 3), ("carol", "data", size)):
        async with world.running(name, model.Policy(use=asked)) as node:
            await node.done(node.api.flow.import_(wire.ImportRequest(source=str(folder), as_name="towns")))
            assert node.features.judgement.count_usable(node.dataset("towns")) == usable


# A node in two networks judges each dataset by the policy of the network in which it was met.


NOW = instant.parse("2026-11-20T08:00:00Z")
ONE, OTHER = (SigningKey(name * 32).dataset_id for name in (b"1", b"2"))
BANK, TOWN = (SigningKey(name * 32).did for name in (b"b", b"t"))


async def test_the_policy_of_a_dataset_is_that_of_its_network(world: World) -> None:
    async with world.running("alice") as alice:
        parts = alice.parts
        own = parts.policy
        rules = {BANK: (None, [Rules(use="data & fresh")]), TOWN: (None, [Rules(use="data & reproduced")])}
        alice.features.judgement.policies = PoliciesByNetwork(own, {"bank": BANK, "town": TOWN}, rules)
        with alice.home.database.write() as connection:
            NetworkScopes(connection).add(ONE, ["town"], NOW)
            NetworkScopes(connection).add(ONE, ["bank"], instant.Instant(NOW - 1))
            NetworkScopes(connection).add(OTHER, ["town"], NOW)
        assert parts.visibility.met_in(ONE) == ["bank", "town"], "the first first"
        assert str(parts.evaluator.use(ONE)) == "data & fresh & reproduced"
        assert str(parts.evaluator.use(OTHER)) == "data & reproduced"
        parts.visibility.note_mention(OTHER, "bank", NOW, is_wanted=False)
        assert parts.visibility.met_in(OTHER) == ["town"], "with one network hearsay changes nothing"


async def test_an_invitation_to_a_second_network_brings_its_key(world: World) -> None:
    """And what each says of the policy is shown and can be accepted."""
    async with world.running("alice") as alice, world.running("bob") as bob:
        await alice.api.policies.publish_rules(wire.NetworkRulesRequest(use="data & fresh"))
        made = await alice.api.networks.invite("wires", wire.InvitationRequest(seconds=3600))
        bank = Network(name="bank", policy_key=str(BANK))
        with bob.home.database.write() as connection:
            keep(connection, bank, NOW)
        await bob.api.networks.join(wire.NetworkRequest(name="wires", invitation=made.text))
        await bob.heard("policy.heard")
        with bob.home.database.read() as connection:
            assert bob.parts.effective_policy.keys(connection) == {"bank": BANK, "wires": made_key(made)}
        assert bob.parts.policies.is_divided
        assert str(bob.parts.policies.of(["wires"]).use) == "data & fresh"
        assert str(bob.parts.policies.of(["bank"]).use) == "data"
        shown = await bob.api.policies.policy()
        assert [each.version for each in shown.network] == [1]


def made_key(made: Any) -> Any:
    from chain.ids import KeyDid

    return KeyDid.parse(made.policy_key)


# A network's policy among nodes: published by one, tightening another at once, loosening it on a person's word.


def under(key: str, **more: Any) -> model.Policy:
    return model.Policy(network_key=key, **more)


async def test_tightening_holds_at_once_and_loosening_waits(world: World) -> None:
    async with world.running("alice") as alice:
        own = under(alice.key, use="chain", serve="data")
        async with world.running("bob", own) as bob, world.running("carol") as carol:
            done = await alice.api.policies.publish_rules(wire.NetworkRulesRequest(use="data", serve="chain"))
            assert (done.version, done.network) == (1, "wires")
            await bob.heard("policy.heard")
            policy = await bob.api.policies.policy()
            assert (policy.use, policy.serve) == ("chain & data", "data & chain")
            (view,) = policy.network
            assert (view.state, len(view.waiting)) == ("waiting", 2)
            await bob.api.policies.accept_rules(wire.AcceptRequest(sid=view.sid))
            policy = await bob.api.policies.policy()
            assert (policy.use, policy.serve, policy.network[0].state) == ("data", "chain", "accepted")
            mine = await carol.api.policies.policy()
            assert (mine.network, mine.use) == ((), "data")
            with carol.home.database.read() as connection:
                assert kinds.refs(connection, of_dataset=False) == [], "whose policy holds is for each node to say"
        async with world.running("bob", own) as bob:
            assert (await bob.api.policies.policy()).use == "data", "over a restart too"
            tighter = await alice.api.policies.publish_rules(wire.NetworkRulesRequest(use="data & fresh"))
            await bob.heard("policy.heard")
            policy = await bob.api.policies.policy()
            assert (policy.use, [each.state for each in policy.network]) == ("data & fresh", ["accepted", "in force"])
            assert tighter.version == 2
        async with world.running("dave", own) as dave:
            await dave.heard("policy.heard", 2)
            assert (await dave.api.policies.policy()).network[-1].version == 2, "who comes later pulls them"


async def test_what_is_refused(world: World) -> None:
    async with world.running("alice") as alice:
        publish, accept = alice.api.policies.publish_rules, alice.api.policies.accept_rules
        with pytest.raises(Invalid, match="attested:2 without any validator groups"):
            await publish(wire.NetworkRulesRequest(use="attested:2"))
        with pytest.raises(Invalid, match="cannot read"):
            await publish(wire.NetworkRulesRequest(use="data ; drop"))
        with pytest.raises(Invalid, match="a group without keys"):
            await publish(wire.NetworkRulesRequest(groups={"a": ()}))
        sid = "f1620" + "ab" * 32
        with pytest.raises(Refused, match="takes its policy from no network"):
            await accept(wire.AcceptRequest(sid=sid))
        alice.assembly.reload(model.Settings(policy=under(alice.key)))
        with pytest.raises(NotFound, match="waits"):
            await accept(wire.AcceptRequest(sid=sid))
        with pytest.raises(Invalid):
            alice.assembly.reload(model.Settings(policy=under("did:key:nonsense")))
        await alice.member.take_part()
        with pytest.raises(Refused, match="in no network"):
            await publish(wire.NetworkRulesRequest(use="data"))

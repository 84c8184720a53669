"""What ``odfctl doctor`` tells of the policy in force, of roots that lie on this machine, and of witnesses."""

from __future__ import annotations

from pathlib import Path

import pytest

from chain.statements.keys import SigningKey
from config import model
from odfd.cli.commands.apply import roots_text
from odfd.control import wire
from odfd.services.maintenance.probes import spare_text
from worlds.manifests import DERIVED, ROOT
from worlds.node_world import Node, World

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
    """Of what is published: of a private dataset nobody else relies on the key."""
    async with world.running("bob", private=True) as bob:
        await bob.apply(ROOT)
        assert (await probed(bob))["roots"].result == "ok"
    async with world.running("alice") as alice:
        await alice.apply(ROOT)
        found = (await probed(alice))["roots"]
        assert (found.result, found.message) == (
            "warning",
            "root keys of published datasets lie on this machine: cities",
        )
        assert found.hint.startswith("odfctl trust authority rotate cities --offline-key FILE")
        draft = await alice.api.authority.draft_authority("cities", wire.AuthorityDraftRequest(action="rotate"))
        request = wire.AuthorityRequest(payload=draft.payload, drop_key=True)
        await alice.api.authority.change_authority("cities", request)
        assert (await probed(alice))["roots"].result == "ok"


async def test_one_witness_less_is_told_before_it_is_gone(world: World) -> None:
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
    """A derived dataset of a stranger came as a folder: it is no more this node's own than a mirror is."""
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

"""Validators among nodes: what is re-run, what is said of it, who listens."""

from __future__ import annotations

import itertools
import re
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

from chain import instant
from chain.errors import Environment, Fault, Invalid, Refused
from chain.multihash import Multihash
from config import model
from engines.contract import EngineProgress
from engines.errors import EngineLost, LimitExceeded
from odfd.control import wire
from odfd.store.ledger.log import Ledger
from odfd.store.ledger.runs import Runs
from odfd.store.mirror_specs import MirrorSpec
from odfd.trust.judgement.suspensions import Suspensions
from p2p.identity import peer_of_seed
from p2p.ports import Topic
from worlds.eventually import PATIENCE, became
from worlds.flow_world import ShownTask, tasks
from worlds.manifests import DERIVED, ROOT
from worlds.node_world import Node, World, add_to_first

ROWS = ("2024-01-01T00:00:00Z,Graz,300000", "2024-01-02T00:00:00Z,Linz,210000")
KEY = "did:key:z6Mkqi1cNkNci6HXwDxeeS1aP1neHbnW4CDve788zZwKPkR9"
ATTESTS = model.Policy(profile="validator", publish=model.Publish(attest=True))


def listens_to(*keys: str, serve: str = "data & attested:1") -> model.Policy:
    groups = tuple(model.Group(name=f"g{number}", keys=(key,)) for number, key in enumerate(keys))
    validators = model.Validators(f=0, groups=groups, recheck=False, spot_check=0.0)
    return model.Policy(profile="mirror", serve=serve, validators=validators)


async def published(world: World, node: Node) -> None:
    world.write("alice", "a.csv", *ROWS)
    await node.apply(ROOT, DERIVED)
    await node.pull()
    await world.spread(node, "cities", "towns")


async def mirror_both(node: Node, source: Any) -> None:
    for name in ("cities", "towns"):
        await node.mirror(source.dataset(name), name)


def said(node: Node, name: str, key: str) -> list[tuple[int, int, str]]:
    """Spans of a validator's attestation as this node knows it."""
    with node.home.database.read() as connection:
        heard = Ledger(connection).attestations(node.dataset(name))
    return [
        (span.first, span.last, span.verdict) for who, one in heard.items() if str(who) == key for span in one.spans
    ]


@pytest.mark.slow
async def test_what_is_true_is_reproduced_attested_and_counted(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob", ATTESTS) as bob:
        await published(world, alice)
        async with world.running("carol", listens_to(bob.key)) as carol:
            await mirror_both(carol, alice)
            assert carol.parts.library.size(alice.dataset("towns")) == 3
            await mirror_both(bob, alice)
            await bob.heard("attestation.signed")
            await carol.heard("attestation.heard")
            view = await carol.dataset_view("towns")
            assert (view.rely_on.blocks, view.rely_on.fact) == (4, "attested 1/1")
            trust = await carol.api.trust.show("towns")
            assert (trust.reach.use, trust.reach.serve, trust.why) == (4, 4, None)
            assert trust.facts.attested == wire.Attested(have=1, needed=1)
            assert [one.spans for one in trust.attestations] == [("reproduced 0-3",)]
            mine = await bob.api.trust.show("towns")
            assert mine.facts.reproduced
            assert (await bob.dataset_view("towns")).rely_on.fact == "reproduced"


@pytest.mark.slow
async def test_what_is_validated_is_shown_among_the_tasks_while_it_lasts(world: World) -> None:
    seen: list[ShownTask] = []
    async with world.running("alice") as alice, world.running("bob", ATTESTS) as bob:
        honest = bob.engine.transform

        async def transform(request: Any, on_progress: Any) -> Any:
            on_progress(EngineProgress(stage="computing", tasks_done=1, tasks_total=4))
            seen.extend(await tasks(bob))
            with pytest.raises(Refused, match="which the node does by itself"):
                await bob.api.tasks.cancel(next(each.name for each in seen if each.kind == "validate"))
            return await honest(request, on_progress)

        bob.engine.transform = transform
        await published(world, alice)
        await mirror_both(bob, alice)
        await bob.heard("attestation.signed")
        (one,) = [task for task in seen if task.kind == "validate"]
        assert (one.target, one.state, one.done, one.unit) == ("towns", "running", 0, "rows")
        assert re.fullmatch(r"block #\d: computing, 2 rows of 1 slice \(.* kB\), 1 of 4 tasks done", one.message), (
            one.message
        )
        assert "validate" not in {task.kind for task in await tasks(bob)}


async def test_verdicts_by_a_key_of_their_own_do_not_name_the_node(world: World) -> None:
    """Whoever lists that key counts them; the node knows them for its own."""
    policy = model.Policy(profile="validator", publish=model.Publish(own_key=True))
    async with world.running("alice") as alice, world.running("bob", policy) as bob:
        await published(world, alice)
        key = (await bob.api.about.status()).validator_key
        assert key not in (None, bob.key)
        async with world.running("carol", listens_to(key)) as carol:
            await mirror_both(carol, alice)
            await mirror_both(bob, alice)
            await bob.heard("attestation.signed")
            await carol.heard("attestation.heard")
            assert (await carol.dataset_view("towns")).rely_on.fact == "attested 1/1"
            assert (said(carol, "towns", key), said(carol, "towns", bob.key)) == ([(0, 3, "reproduced")], [])
            assert [one.group for one in (await bob.api.trust.show("towns")).attestations] == ["me"]
        assert (await alice.api.about.status()).validator_key is None


@pytest.mark.slow
async def test_of_many_derivatives_only_what_moved_is_looked_at(world: World) -> None:
    world.write("alice", "a.csv", *ROWS)
    names = ("towns", "places")
    async with world.running("alice") as alice, world.running("bob", ATTESTS) as bob:
        await alice.apply(ROOT, *(DERIVED.replace("towns", name) for name in names))
        await alice.pull()
        await world.spread(alice, "cities", *names)
        for name in ("cities", *names):
            await bob.mirror(alice.dataset(name), name)
        await bob.heard("attestation.signed", 2)
        looked: set[Any] = set()
        spoken: set[Any] = set()
        validator = bob.parts.validator
        attempt, leave = validator._attempt, validator.loop.leave

        async def noted(dataset: Any) -> Any:
            looked.add(dataset)
            return await attempt(dataset)

        def touched(dataset: Any) -> None:
            spoken.add(dataset)
            leave(dataset)

        await became(lambda: validator.loop.is_idle)
        validator._attempt, validator.loop.leave = noted, touched
        world.write("alice", "b.csv", "2024-01-03T00:00:00Z,Wels,60000")
        await alice.pull("cities")
        await alice.pull("places")
        await bob.heard("verdict.reproduced", 3)
        assert alice.dataset("places") in looked <= spoken, "a card or a verdict that came late is looked at too"


@pytest.mark.slow
@pytest.mark.usefixtures("compared_apart")
async def test_a_lie_is_found_told_and_not_passed_on(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob", ATTESTS) as bob:
        alice.engine.wrong = partial(add_to_first, "population", 1000)
        await published(world, alice)
        async with world.running("carol", listens_to(bob.key, serve="data")) as carol:
            await mirror_both(carol, alice)
            assert carol.parts.library.size(alice.dataset("towns")) == 4
            await mirror_both(bob, alice)
            (event,) = await bob.heard("verdict.mismatch")
            assert "row 0, column population: 301000 published, 300000 computed" in event.message
            assert (bob.engine.transforms, bob.engine.generations) == (4, 3)
            await carol.heard("attestation.heard")
            trust = await carol.api.trust.show("towns")
            assert (trust.why.rule, trust.why.block, trust.reach.serve) == ("accused", 3, 3)
            (spoken,) = trust.why.sids
            assert carol.parts.board.envelope(Multihash.parse(spoken)) is not None, "who said so can be looked at"
            assert carol.parts.library.size(alice.dataset("towns")) == 3
            assert (await carol.dataset_view("towns")).state == "accused"
            assert (await bob.dataset_view("towns")).state == "accused", "one machine tells no broken one"
            (proof,) = (await bob.api.trust.show("towns")).evidence
            assert (proof.cells[0].published, proof.cells[0].computed) == (301000, 300000)
            assert said(carol, "towns", bob.key) == [(0, 2, "not-attempted"), (3, 3, "mismatch")]
            assert carol.parts.library.size(alice.dataset("cities")) == 4


async def test_answers_that_differ_accuse_nobody(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob", ATTESTS) as bob:
        await published(world, alice)
        numbers = itertools.count(1)
        bob.engine.wrong = lambda request: add_to_first("population", next(numbers), request)
        await mirror_both(bob, alice)
        (event,) = await bob.heard("verdict.not-reproducible-here")
        assert event.data["reason"] == "nondeterministic"
        await bob.heard("attestation.signed")
        assert said(bob, "towns", bob.key)[-1] == (3, 3, "not-reproducible-here")
        assert "verdict.mismatch" not in bob.kinds()


async def test_without_a_pin_nobody_is_blamed(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob", ATTESTS) as bob:
        alice.engine.wrong = partial(add_to_first, "population", 1000)
        alice.engine.digest = "sha256:another"
        await published(world, alice)
        await mirror_both(bob, alice)
        (event,) = await bob.heard("verdict.not-reproducible-here")
        assert (event.data["reason"], bob.engine.transforms) == ("engine-not-pinned", 1)


async def test_a_step_whose_input_is_not_here_waits_for_it(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob", ATTESTS) as bob:
        await published(world, alice)
        await bob.mirror(alice.dataset("towns"), "towns")
        assert bob.engine.transforms == 0
        await bob.mirror(alice.dataset("cities"), "cities")
        await bob.heard("verdict.reproduced")


@pytest.mark.parametrize(
    ("why", "fault"),
    [
        ("input-missing", None),
        ("engine-missing", EngineLost("no Java here", rule="java")),
        ("sandbox-refused", EngineLost("no sandbox", rule="sandbox-level")),
        ("resource-limit", LimitExceeded("too much memory", rule="engine-memory")),
    ],
)
async def test_what_keeps_from_a_verdict_is_told_and_signed_when_it_lasts(
    world: World, why: str, fault: Fault | None
) -> None:
    async with world.running("alice") as alice, world.running("bob", ATTESTS) as bob:
        await published(world, alice)
        bob.engine.fault = fault
        if fault is not None:
            await bob.mirror(alice.dataset("cities"), "cities")
        await bob.mirror(alice.dataset("towns"), "towns")
        (event,) = await bob.heard("verdict.put-off")
        assert event.data["reason"] == why
        assert "attestation.signed" not in bob.kinds(), "it may be over in a moment"
        world.clock.instant += 600 * instant.SECOND
        bob.parts.validator.loop.poke()
        await bob.heard("attestation.signed")
        (mine,) = (await bob.api.trust.show("towns")).attestations
        assert mine.spans == ("not-attempted 0-2", f"not-attempted at #3 ({why})")
        bob.engine.fault = None
        world.clock.instant += 1_200 * instant.SECOND  # what was too costly twice rests so long
        if fault is None:
            await bob.mirror(alice.dataset("cities"), "cities")
        bob.parts.validator.loop.poke()
        await bob.heard("verdict.reproduced")
        world.clock.instant += 600 * instant.SECOND
        bob.parts.validator.loop.poke()
        await bob.heard("attestation.signed", 2)
        assert said(bob, "towns", bob.key) == [(0, 3, "reproduced")]


async def announced(node: Node, name: str) -> None:
    """Its newest head, to whoever can hear it now."""
    with node.home.database.read() as connection:
        newest = Ledger(connection).newest_head(node.dataset(name))
    assert newest is not None
    await node.member.announce(Topic.HEADS, newest[1].envelope)


@pytest.mark.slow
async def test_a_step_whose_input_is_forked_does_not_wait_for_it(world: World) -> None:
    world.write("alice", "a.csv", *ROWS)
    async with world.running("alice") as alice:
        await alice.apply(ROOT, DERIVED)
        await alice.pull("cities")
    seed = b"\x2a" * 32
    world.steal("alice", "mallory", seed)
    world.wires.cut.add(peer_of_seed(seed))
    async with (
        world.running("alice") as alice,
        world.running("bob", ATTESTS) as bob,
        world.running("mallory") as mallory,
    ):
        await mallory.sign_again(alone=True)
        for number, node in enumerate((mallory, alice)):
            world.write("alice", f"b{number}.csv", f"2024-01-03T00:00:00Z,Wels,{number}")
            await node.pull("cities")
        await alice.pull("towns")
        for name in ("cities", "towns"):
            await announced(alice, name)
            await bob.heard_head(alice.size(name))
        await bob.mirror(alice.dataset("towns"), "towns")
        (event,) = await bob.heard("verdict.put-off")
        assert event.data["reason"] == "input-missing"
        world.wires.cut.discard(mallory.member.peer_id)
        await announced(mallory, "cities")
        await bob.heard("dataset.forked")
        bob.parts.validator.loop.poke()
        _, event = await bob.heard("verdict.put-off", 2)
        assert event.data["reason"] == "input-disputed"


@pytest.mark.slow
async def test_nothing_is_said_of_steps_that_were_not_run_and_a_restart_goes_on(world: World) -> None:
    async with world.running("alice") as alice:
        await published(world, alice)
        async with world.running("bob", ATTESTS) as bob:
            await mirror_both(bob, alice)
            await bob.heard("attestation.signed")
            bob.engine.fault = Environment("no Java", rule="java")
            world.write("alice", "b.csv", "2024-01-03T00:00:00Z,Wels,60000")
            await alice.pull()
            await world.spread(alice, "cities", "towns")
            with trio.fail_after(PATIENCE):
                for name in ("cities", "towns"):
                    while bob.size(name) < 5:
                        await bob.parts.scheduler.get(bob.dataset(name)).turned.wait()
                while not any("put off" in event for event, _ in bob.logger.said):
                    await trio.testing.wait_all_tasks_blocked(0.05)
            spans = said(bob, "towns", bob.key)
            assert spans in ([(0, 3, "reproduced")], [(0, 3, "reproduced"), (4, 4, "not-attempted")])
        world.clock.instant += 600 * instant.SECOND
        async with world.running("bob", ATTESTS) as bob:
            await bob.heard("attestation.signed")
            assert bob.engine.transforms == 1
            assert said(bob, "towns", bob.key) == [(0, 4, "reproduced")]
            with bob.home.database.read() as connection:
                (run,) = Runs(connection).of(bob.dataset("towns")).values()
            assert (run.first, run.sequence_number) == (3, 4)


async def test_a_policy_that_cannot_be_is_not_kept(world: World) -> None:

    key = KEY
    async with world.running("alice") as alice:
        bob = world.node("bob")
        manifest = f"$schema: Validator\nheaders: {{name: one}}\nspec: {{did: '{key}'}}\n"
        await alice.apply(manifest)
        with pytest.raises(Invalid):
            await alice.apply(manifest.replace("did:key", "did:nokey").replace("one", "x"))
        assert [*alice.api.trust.validators()] == [key]
        asks = model.Policy(serve="data & attested:1", validators=model.Validators(f=0))
        alice.assembly.reload(model.Settings(policy=asks))
        with pytest.raises(Invalid, match="without any validator groups"):
            await alice.api.declarations.delete("Validator", key)
        assert [*alice.api.trust.validators()] == [key]
        with pytest.raises(Invalid):
            alice.assembly.reload(model.Settings(policy=model.Policy(use="nonsense")))
        assert (await alice.api.policies.policy()).serve == "data & attested:1"
        assert bob.key != alice.key
    async with world.running("alice", asks):
        pass


async def test_a_step_that_cannot_be_re_run_leaves_nothing_behind(world: World) -> None:
    """Only the derivative is here: its input is missing."""
    async with world.running("alice") as alice, world.running("bob") as bob:
        await published(world, alice)
        await bob.mirror(alice.dataset("towns"), "towns")
        await bob.pull("towns")
        assert bob.size("towns") == alice.size("towns")
        with pytest.raises(Invalid, match=r"cannot be re-run here: input .* is not held here") as told:
            await bob.done(bob.api.verification.verify("towns", wire.VerifyRequest(level="reproduced")))
        assert "Blocked(" not in told.value.message
        assert told.value.hint.startswith("odfctl mirror add did:odf:")
        assert list((bob.home.directory / "staging").iterdir()) == []


def checks(share: float) -> model.Policy:
    return model.Policy(validators=model.Validators(spot_check=share))


async def test_spot_checks_find_a_lie_unasked(world: World) -> None:
    """A node that attests nothing re-runs what its picks fall on: the lie is found, and not told to others."""
    async with world.running("alice") as alice, world.running("bob", checks(1.0)) as bob:
        alice.engine.wrong = partial(add_to_first, "population", 1000)
        await published(world, alice)
        await mirror_both(bob, alice)
        await bob.heard("verdict.mismatch")
        trust = await bob.api.trust.show("towns")
        assert trust.why is not None
        assert (trust.why.rule, trust.reach.use) == ("own-mismatch", 3)
        assert "attestation.signed" not in bob.kinds()


@pytest.mark.parametrize("share", [0.0, 1e-12])
async def test_what_is_not_picked_is_not_run(world: World, share: float) -> None:
    async with world.running("alice") as alice, world.running("bob", checks(share)) as bob:
        await published(world, alice)
        await mirror_both(bob, alice)
        assert await bob.parts.validator._round() > 0
        assert bob.engine.transforms == 0
        assert (await bob.dataset_view("towns")).rely_on.fact == "data"


async def test_a_mirror_spot_checks_where_an_engine_is(world: World) -> None:
    """By its profile, and by what the person says instead; never without an engine, and then without complaint."""
    async with world.running("bob", model.Policy(profile="mirror")) as bob:
        share = bob.parts.validator._settings.share
        assert share() == 0.01
        bob.engine.why_not = Invalid("no Java here")
        assert share() == 0.0
        bob.engine.why_not = None
        never = model.Policy(profile="mirror", validators=model.Validators(spot_check=0.0))
        for said, expected in ((never, 0.0), (model.Policy(), 0.0), (model.Policy(profile="validator"), 1.0)):
            bob.assembly.reload(model.Settings(policy=said))
            assert share() == expected


async def test_what_was_derived_falls_with_its_input(world: World) -> None:
    """Bob asks more of the cities than is known of them: what reads them is tainted, until he asks less."""
    async with world.running("alice") as alice, world.running("bob") as bob:
        await published(world, alice)
        cities = alice.dataset("cities")
        await bob.parts.scheduler.add(MirrorSpec(dataset=str(cities), name="cities", use="data & witnessed:1"))
        await bob.parts.scheduler.pass_now(cities)
        await bob.mirror(alice.dataset("towns"), "towns")
        await bob.pull("towns")
        view = await bob.dataset_view("towns")
        assert (view.conditions, view.rely_on.blocks, view.rely_on.fact) == (("Tainted",), 3, "inputs at #3")
        assert (await bob.dataset_view("cities")).conditions == ()
        await bob.parts.scheduler.add(MirrorSpec(dataset=str(cities), name="cities"))
        assert (await bob.dataset_view("towns")).conditions == ()


@pytest.mark.slow
async def test_a_machine_that_stands_alone_is_told_to_suspect_itself(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob", ATTESTS) as bob:
        await published(world, alice)
        await mirror_both(bob, alice)
        await bob.heard("attestation.signed")
        groups = (model.Group(name="g", keys=(bob.key,)),)
        policy = model.Policy(validators=model.Validators(f=0, groups=groups, spot_check=1.0))
        async with world.running("carol", policy) as carol:
            carol.engine.wrong = partial(add_to_first, "population", 1)
            await mirror_both(carol, alice)
            await carol.heard("verdict.mismatch")
            await carol.heard("attestation.heard")
            why = (await carol.api.trust.show("towns")).why
            assert (why.rule, "suspect this machine too" in why.message) == ("own-mismatch", True)


async def test_too_few_left_to_ask_lower_nothing_and_are_told(world: World) -> None:
    async with world.running("alice") as alice:
        await published(world, alice)
        groups = (model.Group(name="g0", keys=(KEY,)), model.Group(name="g1", keys=(alice.key,)))
        policy = model.Policy(use="data & attested:2", validators=model.Validators(f=0, groups=groups))
        async with world.running("carol", policy) as carol:
            await mirror_both(carol, alice)
            assert "unreachable" not in (await carol.api.trust.show("towns")).why.message
            with carol.home.database.write() as connection:
                for group in ("g0", "g1"):
                    Suspensions(connection).suspend(group, [], carol.clock.now())
            trust = await carol.api.trust.show("towns")
            assert (trust.why.rule, trust.reach.use) == ("pending", 3)
            assert "quorum unreachable: 2 groups must agree, of 1 the word counts" in trust.why.message

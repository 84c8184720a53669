"""Validators among nodes: what is run and decoded again, asked and unasked, what is said of it, who listens."""

from __future__ import annotations

import itertools
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec
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
from odfd.store import captures
from odfd.store.ledger.log import Ledger
from odfd.store.ledger.runs import BACKOFF, Rechecks, Runs
from odfd.store.mirror_specs import MirrorSpec
from odfd.trust.judgement.suspensions import Suspensions
from odfd.trust.validation import evidence_rechecker
from p2p.identity import peer_of_seed
from p2p.ports import Topic
from worlds.eventually import PATIENCE, became
from worlds.flow_world import ShownTask, tasks
from worlds.manifests import DERIVED, ROOT, in_shards
from worlds.node_world import Node, World, add_to_first

# Validators among nodes: what is re-run, what is said of it, who listens.


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
    """Attack T-PRIVATE-02: a validator that is identified by the key of its verdicts, and attacked.

    Defence: a separate key signs them (`own-key`); members of its network may still identify it by the data it serves
    and sends first: `docs/spec/trust.md#privacy`.

    Whoever lists that key counts them; the node knows them for its own.
    """
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
    world.wires.cut(peer_of_seed(seed))
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
        world.wires.heal(mallory.member.peer_id)
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
    """Attack T-VERDICT-01: a validator that copies correct verdicts.

    Defence: spot checks: nodes that do not attest re-run a secret share of steps; they detect a copied false verdict.

    A node that attests nothing re-runs what its picks fall on: the lie is found, and not told to others.
    """
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


# Evidence that listed validators name is fetched and run again unasked, and what comes out is this node's own word.


def rechecks(*keys: str, f: int = 0, recheck: bool = True) -> model.Policy:
    groups = tuple(model.Group(name=f"g{number}", keys=(key,)) for number, key in enumerate(keys))
    return model.Policy(serve="data", validators=model.Validators(f=f, groups=groups, recheck=recheck))


@asynccontextmanager
async def accusing(world: World, *, lies: bool) -> AsyncIterator[tuple[Any, Any]]:
    """Bob says that Alice's derivation is wrong: so it is, or his machine is."""
    async with world.running("alice") as alice, world.running("bob", ATTESTS) as bob:
        (alice if lies else bob).engine.wrong = partial(add_to_first, "population", 1000)
        world.write("alice", "a.csv", *ROWS)
        await alice.apply(ROOT, DERIVED)
        await alice.pull()
        await world.spread(alice, "cities", "towns")
        for name in ("cities", "towns"):
            await bob.mirror(alice.dataset(name), name)
        await bob.heard("attestation.signed")
        yield alice, bob


async def mirrored(node: Node, source: Any) -> None:
    for name in ("cities", "towns"):
        await node.mirror(source.dataset(name), name)
    await node.heard("attestation.heard")


async def at_rest(node: Node) -> float:
    """Until a round found nothing to do; how many seconds that is so."""
    with trio.fail_after(PATIENCE):
        while True:
            await trio.testing.wait_all_tasks_blocked(0.05)
            if node.parts.rechecker.loop.is_idle and node.parts.rechecker.rests:
                return float(node.parts.rechecker.rests)


async def put_off(node: Node, count: int) -> float:
    """Until so many attempts were put off; how long until the next."""
    with trio.fail_after(PATIENCE):
        while [event for event, _ in node.logger.said].count("evidence put off") < count:
            await trio.testing.wait_all_tasks_blocked(0.05)
    return await at_rest(node)


def kept(node: Node) -> list[str]:
    return [path.name for path in (node.home.directory / "evidence").iterdir()]


@pytest.mark.slow
async def test_a_lie_is_confirmed_here_and_no_word_of_others_is_needed(world: World) -> None:
    async with accusing(world, lies=True) as (alice, bob):
        async with world.running("carol", rechecks(bob.key)) as carol:
            await mirrored(carol, alice)
            (event,) = await carol.heard("evidence.rechecked")
            assert (event.data["result"], event.data["block"]) == ("confirmed", 3)
            assert (carol.engine.transforms, carol.engine.generations) == (4, 3), "three in fresh processes"
            trust = await carol.api.trust.show("towns")
            assert (trust.why.rule, trust.why.block, trust.reach.use) == ("own-mismatch", 3, 3)
            assert (await carol.dataset_view("towns")).state == "refuted", "two machines, one value"
            (found,) = trust.evidence
            assert (found.kind, found.kept, found.bundle) == ("mismatch", True, event.data["bundle"])
            assert found.recheck == "confirmed"
            assert [(cell.published, cell.computed) for cell in found.cells] == [(301000, 300000)]
            with carol.home.database.read() as connection:
                assert Ledger(connection).check() > 0
                decided = connection.execute("SELECT body FROM trust_ledger WHERE type = 'decision'").fetchall()
            assert b'"decision":"recheck"' in decided[-1][0]
            assert b'"result":"confirmed"' in decided[-1][0]
            assert await at_rest(carol) > 1e9
        alice.engine.wrong = None
        async with world.running("carol", rechecks(bob.key)) as carol:
            assert (await carol.api.trust.show("towns")).why.rule == "own-mismatch", "kept over a restart"
            assert await at_rest(carol) > 1e9
            assert carol.engine.transforms == 0, "and not done twice"
            carol.assembly.reload(model.Settings(policy=rechecks()))
            assert (await carol.api.trust.show("towns")).why.rule == "own-mismatch", "whoever accused"


@pytest.mark.slow
async def test_a_broken_machine_among_validators_harms_nobody(world: World) -> None:
    """Attack T-VERDICT-06: a listed validator that accuses falsely, to stop a dataset or to keep machines busy.

    Defence: the step is re-run here, one bundle at a time; a re-run from the start that equals the published result
    counts against that validator, and no more evidence of its group is fetched for a day.
    """
    async with (
        accusing(world, lies=False) as (alice, bob),
        world.running("carol", rechecks(bob.key, alice.key, f=1)) as carol,
    ):
        await mirrored(carol, alice)
        (event,) = await carol.heard("evidence.rechecked")
        assert (event.data["result"], carol.engine.transforms, carol.engine.generations) == ("refuted", 1, 0)
        view = await carol.dataset_view("towns")
        assert (view.rely_on.blocks, view.rely_on.fact) == (4, "reproduced")
        with carol.home.database.read() as connection:
            now = carol.clock.now()
            assert Rechecks(connection).resting(now) == {"g0"}
            assert Rechecks(connection).resting(instant.Instant(now + BACKOFF)) == frozenset()
        (name,) = kept(carol)
        assert carol.features.peers._list_untrue(list(carol.parts.bundles._paths)) == frozenset(
            carol.parts.bundles._paths
        )
        assert name.startswith(str(event.data["bundle"]))
        (shown,) = (await carol.api.trust.show("towns")).evidence
        assert (shown.recheck, shown.kept) == ("refuted", True)


@pytest.mark.slow
async def test_where_nobody_may_err_a_false_accusation_splits(world: World) -> None:
    async with (
        accusing(world, lies=False) as (alice, bob),
        world.running("carol", rechecks(bob.key)) as carol,
    ):
        await mirrored(carol, alice)
        await carol.heard("evidence.rechecked")
        assert (await carol.api.trust.show("towns")).why.rule == "split"


@pytest.mark.slow
async def test_runs_that_differ_here_accuse_nobody(world: World) -> None:
    async with (
        accusing(world, lies=True) as (alice, bob),
        world.running("carol", rechecks(bob.key)) as carol,
    ):
        numbers = itertools.count()
        carol.engine.wrong = lambda request: add_to_first("population", next(numbers), request)
        await mirrored(carol, alice)
        (event,) = await carol.heard("evidence.rechecked")
        assert event.data["result"] == "unable"
        trust = await carol.api.trust.show("towns")
        assert trust.why is None
        assert trust.facts.reproduced is False


@pytest.mark.slow
async def test_without_an_engine_one_bundle_is_kept(world: World) -> None:
    async with (
        accusing(world, lies=True) as (alice, bob),
        world.running("carol", rechecks(bob.key, recheck=False)) as carol,
    ):
        carol.engine.why_not = Invalid("no Java here")
        await mirrored(carol, alice)
        assert kept(carol) == []
        carol.assembly.reload(model.Settings(policy=rechecks(bob.key)))
        await at_rest(carol)
        assert await at_rest(carol) > 1e9
        assert (len(kept(carol)), carol.engine.transforms) == (1, 0)
        assert (await carol.api.trust.show("towns")).why.rule == "accused"


@pytest.mark.slow
@pytest.mark.parametrize("whom", ["nobody", "switched off"])
async def test_nothing_is_fetched_on_the_word_of_strangers_or_unasked(world: World, whom: str) -> None:
    async with accusing(world, lies=True) as (alice, bob):
        policy = rechecks() if whom == "nobody" else rechecks(bob.key, recheck=False)
        async with world.running("carol", policy) as carol:
            await mirrored(carol, alice)
            assert await at_rest(carol) > 1e9
            assert (kept(carol), carol.engine.transforms) == ([], 0)


async def test_who_publishes_does_not_check_himself(world: World) -> None:
    async with accusing(world, lies=True) as (alice, bob):
        alice.assembly.reload(model.Settings(policy=rechecks(bob.key)))
        assert await at_rest(alice) > 1e9
        assert kept(alice) == []


@pytest.mark.slow
async def test_what_cannot_be_had_is_tried_again_after_growing_pauses(world: World) -> None:
    async with (
        accusing(world, lies=True) as (alice, bob),
        world.running("carol", rechecks(bob.key, recheck=False)) as carol,
    ):
        await mirrored(carol, alice)
        (bundle,) = bob.parts.bundles._paths
        path = bob.parts.bundles.path(bundle)
        away = path.rename(path.with_suffix(".away"))
        carol.assembly.reload(model.Settings(policy=rechecks(bob.key)))
        assert 500 < await put_off(carol, 1) <= 600
        carol.clock.instant += evidence_rechecker.RETRY
        carol.parts.rechecker.loop.poke()
        assert 1100 < await put_off(carol, 2) <= 1200
        away.rename(path)
        carol.clock.instant += 2 * evidence_rechecker.RETRY
        carol.parts.rechecker.loop.poke()
        (event,) = await carol.heard("evidence.rechecked")
        assert event.data["result"] == "confirmed"


@pytest.mark.slow
async def test_evidence_of_something_else_is_dropped_and_its_reporter_rests(world: World) -> None:
    """What lies on the shelf under the name is a bundle about a block that does not stand here."""
    async with (
        accusing(world, lies=True) as (alice, bob),
        world.running("carol", rechecks(bob.key, recheck=False)) as carol,
    ):
        await mirrored(carol, alice)
        carol.parts.rechecker._hash_at = lambda _: None
        carol.assembly.reload(model.Settings(policy=rechecks(bob.key)))
        (event,) = await carol.heard("evidence.rechecked")
        assert (event.data["result"], kept(carol), carol.engine.transforms) == ("unfit", [], 0)
        assert await at_rest(carol) > 1e9
        assert (await carol.api.trust.show("towns")).why.rule == "accused", "words are counted as before"


@pytest.mark.slow
async def test_a_refuted_dataset_feeds_no_derivation(world: World) -> None:
    """Attack T-VERDICT-05: a false result that honest nodes derive from.

    Defence: a mirror is an input only within its reach; data derived earlier is shown as tainted.

    Carol derives from what Alice derived, as far as it may be relied on, and goes on when a person lifts it.
    """
    async with (
        accusing(world, lies=True) as (alice, bob),
        world.running("carol", rechecks(bob.key, recheck=False)) as carol,
    ):
        await mirrored(carol, alice)
        mine = DERIVED.replace("name: towns", "name: mine").replace("cities", "towns")
        await carol.apply(mine)
        (item,) = await carol.pull("mine")
        assert (item.outcome, item.records) == ("blocked", 0)
        assert "of input towns only blocks up to #2 may be used under the policy" in item.message
        block = carol.home.chains.chain(alice.dataset("towns")).block_at(3).hash
        await carol.api.resolving.resolve("towns", wire.ResolveRequest(follow=str(block)))
        (item,) = await carol.pull("mine")
        assert (item.outcome, item.records) == ("updated", 2)


# A root whose captured bytes others have: they decode them again, and sign whether the blocks are what they give.


LEDGER = "{kind: Ledger, primaryKey: [city]}"


async def filled(world: World, node: Node, shards: int = 1, days: tuple[int, ...] = (1, 2, 3)) -> None:
    root = ROOT.replace("{kind: Append}", LEDGER)
    await node.apply(root if shards == 1 else in_shards(root))
    await node.keep_raw("cities")
    await more(world, node, *days)


async def more(world: World, node: Node, *days: int) -> None:
    for day in days:
        world.write("alice", f"d{day}.csv", f"2024-01-0{day}T00:00:00Z,c{day},{day}", "2023-01-01T00:00:00Z,Wels,7")
        await node.pull("cities")


def is_whole(node: Node, name: str) -> bool:
    with node.home.database.read() as connection:
        checked = Ledger(connection).chain(node.dataset(name))
    return bool(checked.data == checked.frontier.size)


async def bind(node: Node) -> wire.RawChainView:
    made: wire.RawChainView = await node.done(node.api.raw.bind("cities"))
    return made


async def attest(node: Node, ref: str = "theirs", chain: str = "bytes") -> wire.RawAttestResult:
    done: wire.RawAttestResult = await node.done(node.api.raw.attest(ref, wire.AttestRawRequest(chain=chain)))
    return done


async def shared(world: World, alice: Node, bob: Node) -> None:
    """Bob mirrors the root and its bytes."""
    await alice.api.visibility.publish(wire.VisibilityRequest(refs=("cities", "cities.raw")))
    for name, called in (("cities", "theirs"), ("cities.raw", "bytes")):
        await world.spread(alice, name)
        await bob.mirror(alice.dataset(name), called)


@pytest.mark.parametrize("shards", [1, 3])
async def test_another_node_attests_a_root(world: World, shards: int) -> None:
    """What Bob signs is seen by whoever has the root, and is no observation of the source."""
    async with world.running("alice") as alice, world.running("bob") as bob:
        await filled(world, alice, shards)
        assert (await bind(alice)).bound == 3
        await shared(world, alice, bob)
        done = await attest(bob)
        assert (done.ok, done.decoded, done.otherwise, done.later) == (True, 3, 0, 0)
        assert done.signed >= 3
        (seen,) = (await bob.api.trust.show("theirs")).observations
        assert seen.result == "decoded"
        assert (await attest(bob)).signed == 0, "nothing is said twice"
        await alice.heard("observation.heard")
        assert [each.result for each in (await alice.api.trust.show("cities")).observations] == ["decoded"]
        assert (await alice.api.trust.show("cities")).facts.observed.have == 0


async def test_other_rows_than_the_bytes_give_are_told(world: World) -> None:
    """Attack T-VERDICT-04: an owner whose captured bytes give other rows than it published.

    Defence: the bytes are decoded again, and the result is signed for each block.

    As of a publisher that keeps bytes and publishes other rows.
    """
    async with world.running("alice") as alice, world.running("bob") as bob:
        await filled(world, alice)
        with alice.home.database.write() as connection:
            first, second, _ = captures.of(connection, alice.dataset("cities"))
            swapped = msgspec.structs.replace(second.capture, files=first.capture.files)
            captures.keep(connection, alice.dataset("cities"), swapped, second.parts, second.time)
        await bind(alice)
        await shared(world, alice, bob)
        done = await attest(bob)
        assert (done.ok, done.decoded, done.otherwise) == (False, 2, 1)
        assert [each.sequence_number for each in done.differences] == [second.last]


@pytest.mark.parametrize("name", ["..", "/etc/passwd/..", "a" * 4000, "\n", "x/\u202e"])
async def test_names_of_files_lead_nowhere(world: World, name: str) -> None:
    """Attack T-BYTES-02: names of captured files that lead out of a folder.

    Defence: only the last part of a name is used, if it is visible and short.

    A stranger wrote them; they tell a format, and no place.
    """
    async with world.running("alice") as alice, world.running("bob") as bob:
        await filled(world, alice, days=(1,))
        with alice.home.database.write() as connection:
            (only,) = captures.of(connection, alice.dataset("cities"))
            (file,) = only.capture.files
            named = msgspec.structs.replace(only.capture, files=(msgspec.structs.replace(file, name=name),))
            captures.keep(connection, alice.dataset("cities"), named, only.parts, only.time)
        await bind(alice)
        await shared(world, alice, bob)
        assert (await attest(bob)).decoded == 1


async def test_what_comes_later_is_bound_later(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        await filled(world, alice, days=(1,))
        assert (await bind(alice)).bound == 1
        assert (await bind(alice)).bound == 0
        await shared(world, alice, bob)
        assert (await attest(bob)).decoded == 1
        await bob.api.mirrors.pause("theirs")
        await more(world, alice, 2)
        view = await bind(alice)
        assert (view.bound, view.total, view.gaps) == (1, 2, 0)
        mirror = bob.parts.scheduler.get(alice.dataset("cities.raw"))
        with trio.fail_after(PATIENCE):
            while bob.size("bytes") < alice.size("cities.raw") or not is_whole(bob, "bytes"):
                await mirror.turned.wait()
        assert (await attest(bob)).later == 1, "what is not here is not judged"


async def test_who_may_attest_what(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(ROOT, DERIVED)
        with pytest.raises(Refused, match="not ingested by this node"):
            await bind_of(alice, "towns")
        with pytest.raises(Refused, match="nothing is kept"):
            await bind(alice)
        await alice.keep_raw("cities")
        await more(world, alice, 1)
        await bind(alice)
        with pytest.raises(Refused, match="this node's own"):
            await attest(alice, "cities", "cities.raw")


async def bind_of(node: Node, ref: str) -> Any:
    return await node.done(node.api.raw.bind(ref))


async def test_bytes_of_another_publisher_attest_nothing(world: World) -> None:
    """Attack T-VERDICT-04: bytes for a root that another than its owner offers, so that validators sign that the root
    is wrong.

    Defence: a root names the dataset of its bytes in its chain.

    Else anybody could have validators sign that a root is not what its bytes give.
    """
    async with world.running("alice") as alice, world.running("bob") as bob, world.running("carol") as carol:
        for node, name, day in ((alice, "alice", 1), (bob, "bob", 2)):
            await node.apply(ROOT)
            await node.keep_raw("cities")
            world.write(name, f"d{day}.csv", f"2024-01-0{day}T00:00:00Z,c{day},{day}")
            await node.pull("cities")
            await bind(node)
            await node.api.visibility.publish(wire.VisibilityRequest(refs=("cities", "cities.raw")))
        await world.spread(alice, "cities")
        await world.spread(bob, "cities.raw")
        await carol.mirror(alice.dataset("cities"), "theirs")
        await carol.mirror(bob.dataset("cities.raw"), "bytes")
        with pytest.raises(Refused, match="does not name"):
            await attest(carol)
        with pytest.raises(Invalid, match="is no dataset of captures"):
            await attest(carol, "theirs", "theirs")


async def test_a_mended_rendition_is_attested_from_the_same_bytes(world: World) -> None:
    """The bindings are those of all renditions: of the one that was decoded wrongly, and of the one that mends it."""
    async with world.running("alice") as alice, world.running("bob") as bob:
        await filled(world, alice)
        await bind(alice)
        await alice.apply(ROOT)  # it appends, where a ledger has lost rows
        await alice.done(alice.api.renditions.create("cities", wire.RenditionRequest()))
        await alice.done(alice.api.renditions.hand_over("cities", 1, wire.HandoverRequest()))
        await more(world, alice, 4)
        assert (await bind(alice)).bound == 1
        await alice.api.visibility.publish(wire.VisibilityRequest(refs=("cities.r0",)))
        await shared(world, alice, bob)
        await world.spread(alice, "cities.r0")
        await bob.mirror(alice.dataset("cities.r0"), "former")
        now, before = await attest(bob), await attest(bob, "former")
        assert (now.ok, now.decoded, now.later) == (True, 4, 0)
        assert (before.ok, before.decoded, before.later) == (True, 3, 1), "it got nothing since it ended"

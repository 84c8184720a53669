"""The node's engine: before it is found, with the options that a person set, and the one that a chain pins."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import MockClock

from chain.data.ddl import parse_ddl
from chain.errors import Environment, Invalid, Refused
from chain.model.source import MergeAppend, ReadCsv, SqlQueryStep, TransformSql
from chain.statements import statement
from chain.statements.envelope import sid
from chain.statements.statement import EngineUsed
from config import model
from config.model import Settings
from engines.contract import IngestBatchRequest, Vocab
from engines.errors import EngineLost
from engines.provision.host import SparkOptions
from engines.provision.settings import ENGINE_FAILED, Isolation
from engines.query.frames import HEAD, AnswerFrameReader
from odfd.cli.commands.node import status_text
from odfd.cli.trust_text import trust_text
from odfd.control import wire
from odfd.datasets.engine_pins import EngineInUse
from odfd.ingest.slices import ingest
from odfd.node.readings import Readings
from odfd.runtime.supervision import Life
from odfd.services.execution.engine import LATEST, SOONEST, NodeEngine
from odfd.services.execution.options import engine_environ, ingest_settings, spark_options
from odfd.services.peers.host_options import host_options
from odfd.store.directory import open_state_directory
from odfd.store.ledger.log import Ledger
from odfd.trust.judgement.verdicts import ReachBound
from odfd.trust.validation import reexecution
from p2p.identity import peer_of_seed
from p2p.pace import Bandwidth
from p2p.web.client import Patience
from worlds.eventually import became
from worlds.fake_engine import FakeEngine
from worlds.manifests import DERIVED, ROOT
from worlds.node_world import Node, World, add_to_first

# The node's engine before it is found: on virtual time.


class Warm:
    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        await trio.sleep_forever()

    async def identity(self) -> str:
        return "found"


class Lines:
    """A journal."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def info(self, event: str, **_: object) -> None: ...

    def error(self, event: str, **_: object) -> None:
        self.said.append(event)


async def test_an_engine_that_was_not_found_is_looked_for_again(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """As after a disk that was full; why there is none is told once, and to all who ask meanwhile."""
    tried: list[float] = []
    choice = SimpleNamespace(remarks=(), passed_over=(), verdict=SimpleNamespace(unbounded=()))
    host = SimpleNamespace(choice=choice, identity=SimpleNamespace(sandbox="bubblewrap"), engine=Warm())

    async def found(*_: Any) -> Any:
        tried.append(trio.current_time())
        if len(tried) < 10:
            raise Environment("No space left on device", rule="engine-digest")
        return host

    monkeypatch.setattr("odfd.services.execution.engine.spark_engine", found)
    journal, life = Lines(), Life()
    engine: Any = NodeEngine(SparkOptions(scratch=tmp_path, cache=tmp_path), {}, journal, lambda: None)  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.run, life)
        with pytest.raises(EngineLost, match="this node has no engine: No space left"):
            await engine.identity()
        assert (engine.why_not is not None, engine.view().state) == (True, "failed")
        await trio.sleep(6 * LATEST)
        assert (engine.why_not, await engine.identity()) == (None, "found")
        life.stopping.set()
    pauses = [round(later - earlier) for earlier, later in pairwise(tried)]
    assert pauses == [SOONEST * 2**n for n in range(6)] + [LATEST] * 3
    assert journal.said == ["no engine"]


def test_what_an_engine_says_of_its_own_fault_is_an_error_of_the_log(tmp_path: Any) -> None:
    journal = Lines()
    engine: Any = NodeEngine(SparkOptions(scratch=tmp_path, cache=tmp_path), {}, journal, lambda: None)  # type: ignore[arg-type]
    engine._report("engine-started", {})
    engine._report(ENGINE_FAILED, {"message": "a bug", "trace": ("here",)})
    assert journal.said == [ENGINE_FAILED]


async def test_where_spark_is_not_installed_nothing_has_failed(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    journal, life = Lines(), Life()
    engine = NodeEngine(SparkOptions(scratch=tmp_path, cache=tmp_path), {}, journal, lambda: None)  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.run, life)
        with pytest.raises(EngineLost, match="Spark is not installed"):
            await engine.identity()
        life.stopping.set()
    view = engine.view()
    assert (view.state, journal.said) == ("not-installed", [])
    assert "odfctl docs install" in view.message
    assert "not installed" not in view.message
    assert status_text(wire.Status(node_id="did:key:z6", version="1", engine=view)).count("not installed") == 1


async def test_a_node_without_an_engine_stops_when_asked(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    async def none(*_: Any) -> Any:
        raise Environment("no Java", rule="java")

    monkeypatch.setattr("odfd.services.execution.engine.spark_engine", none)
    life = Life()
    engine = NodeEngine(SparkOptions(scratch=tmp_path, cache=tmp_path), {}, Lines(), lambda: None)  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.run, life)
        await trio.sleep(3 * LATEST)
        stopped = trio.current_time()
        life.stopping.set()
    assert trio.current_time() == stopped, "it sleeps no longer when it is asked to stop"


# The engine that a chain pins is the one that runs, or nothing runs; and who has it not, says so.


ROWS = ("2024-01-01T00:00:00Z,Graz,300000", "2024-01-02T00:00:00Z,Linz,210000")
MORE = ("2024-01-03T00:00:00Z,Wels,60000",)
OLD, NEW, MADE_UP = (f"sha256:{digit * 64}" for digit in "78d")
ATTESTS = model.Policy(profile="validator", publish=model.Publish(attest=True))
FOLLOWING: dict[str, Any] = {"flows": model.Flows(follow=True, cooldown_seconds=0)}
IN_FULL = wire.VerifyRequest(level="reproduced")


def listens_to(key: str, use: str) -> model.Policy:
    groups = (model.Group(name="g", keys=(key,)),)
    validators = model.Validators(f=0, groups=groups, recheck=False, spot_check=0.0)
    return model.Policy(profile="mirror", use=use, serve=use, validators=validators)


def pinning(manifest: str, digest: str) -> str:
    return manifest.replace("engine: spark", f"engine: spark\n        version: '{digest}'")


async def made(world: World, node: Node, digest: str = OLD) -> None:
    """Both datasets with rows, made by an engine of that digest."""
    node.engine.digest = digest
    world.write("alice", "a.csv", *ROWS)
    await node.apply(ROOT, DERIVED)
    await node.pull()


async def mirrored(world: World, alice: Node, node: Node) -> None:
    await world.spread(alice, "cities", "towns")
    for name in ("cities", "towns"):
        await node.mirror(alice.dataset(name), name)


async def view(node: Node, name: str = "towns") -> wire.DatasetView:
    found: wire.DatasetView = await node.dataset_view(name)
    return found


async def pulled(node: Node) -> wire.PullItem:
    return next(each for each in await node.pull() if each.ref == "towns")


async def proven(node: Node) -> wire.ProofReport:
    found: wire.ProofReport = await node.done(node.api.proving.prove("towns", wire.ProveRequest()))
    return found


async def test_an_engine_that_was_replaced_appends_nothing_until_it_is_proven(world: World) -> None:
    """Attack T-VERDICT-03: an upgrade after which a chain would continue under the pin of an engine that no longer
    runs.

    Defence: the pin and the engine are compared where a transaction is executed; nothing runs until the operator has
    the new engine proven.
    """
    async with world.running("alice") as alice:
        await made(world, alice)
        size, runs, alice.engine.digest = alice.size("towns"), alice.engine.transforms, NEW
        world.write("alice", "b.csv", *MORE)
        item = await pulled(alice)
        assert (item.outcome, item.fault.rule, item.blocks) == ("blocked", "engine-changed", 0)
        assert item.fault.hint == "odfctl engine prove towns"
        assert "sha256:777" in item.fault.detail
        assert "sha256:888" in item.fault.detail
        assert (alice.size("towns"), alice.engine.transforms) == (size, runs), "nothing ran, nothing is appended"
        assert await told(alice) == (("Blocked",), 1, "failed", 1.0)
        found = await proven(alice)
        assert (found.before, found.engine.digest, found.recorded is not None) == (OLD, NEW, True)
        assert (await pulled(alice)).outcome == "updated"
        assert await told(alice) == ((), 0, "ok", 0.0)
        chain = alice.home.chains.chain(alice.dataset("towns"))
        made_by = [
            event.transform.version for at in range(size) if hasattr(event := chain.block_at(at).event, "transform")
        ]
        assert made_by == [OLD], "what was made before keeps the pin under which it was made"


async def told(node: Node) -> tuple[tuple[str, ...], int, str, float]:
    """What the dataset's conditions, the status, the doctor and the metrics say of it."""
    probe = next(each for each in await node.api.about.doctor() if each.name == "engine pins")
    if probe.result != "ok":
        assert ("towns" in probe.message, probe.hint) == (True, "odfctl engine prove towns")
    readings = Readings(node.features)
    await readings.surveyor._round()
    metrics = (await readings.scrape()).decode()
    (line,) = (each for each in metrics.splitlines() if each.startswith("odfd_datasets_blocked "))
    return (
        (await view(node)).conditions, (await node.api.about.status()).blocked, probe.result, float(line.split()[1])
    )  # fmt: skip


async def test_another_query_takes_over_with_the_engine_that_is_here(world: World) -> None:
    """A handover names its engine anew, so it waits for no proof."""
    async with world.running("alice") as alice:
        await made(world, alice)
        alice.engine.digest = NEW
        await alice.apply(DERIVED.replace("select *", "SELECT  *"))
        world.write("alice", "b.csv", *MORE)
        assert (await pulled(alice)).outcome == "updated"
        assert ((await view(alice)).engine, (await view(alice)).conditions) == (NEW, ())


async def test_a_dataset_that_was_never_pulled_is_moved_too(world: World) -> None:
    async with world.running("alice") as alice:
        alice.engine.digest = OLD
        world.write("alice", "a.csv", *ROWS)
        await alice.apply(ROOT, DERIVED)
        alice.engine.digest = NEW
        assert (await pulled(alice)).fault.rule == "engine-changed"
        found = await proven(alice)
        assert (found.ok, found.transforms, found.before) == (True, 0, OLD)
        assert (await pulled(alice)).outcome == "updated"


async def test_a_dataset_that_follows_shows_that_it_is_blocked_and_rests(world: World) -> None:
    async with world.running("alice", **FOLLOWING) as alice:
        await made(world, alice)
        runs, alice.engine.digest = alice.engine.transforms, NEW
        await became(lambda: flow_of(alice) is not None and flow_of(alice).outcome is not None)
        before = flow_of(alice).runs
        world.write("alice", "b.csv", *MORE)
        await alice.pull("cities")
        await became(lambda: flow_of(alice).runs > before)
        await became(lambda: flow_of(alice).outcome.value == "blocked")
        record = flow_of(alice)
        assert "odfctl engine prove towns" in record.message
        assert (record.failures, record.retry_at, record.pending) == (0, None, None), "it waits for news"
        assert alice.engine.transforms == runs
        await proven(alice)
        await became(lambda: flow_of(alice).outcome.value == "updated")


def flow_of(node: Node) -> Any:
    entry = node.parts.flows.scheduler.find(str(node.dataset("towns")))
    return None if entry is None else entry.record


@pytest.mark.parametrize("part", ["transform", "preprocess"])
async def test_a_digest_that_no_engine_here_has_is_refused_unless_it_is_forced(world: World, part: str) -> None:
    asks = f"preprocess: {{kind: Sql, engine: spark, version: '{MADE_UP}', query: select * from input}}"
    root = ROOT if part == "transform" else ROOT.replace("merge:", f"{asks}\n      merge:")
    manifests = (root, pinning(DERIVED, MADE_UP)) if part == "transform" else (root,)
    async with world.running("alice") as alice:
        *_, item = (await alice.apply(*manifests)).items
        assert (item.action, item.fault.rule) == ("failed", "engine-not-here")
        assert alice.engine.digest in item.fault.hint
        assert "--force" in item.fault.hint
        assert "m" in item.fault.place, "it is said where it is written"
        if part == "transform":
            *_, item = (await alice.apply(*manifests, force=True)).items
            assert (item.action, "engine-changed" in item.warnings[0]) == ("created", True)
            world.write("alice", "a.csv", *ROWS)
            assert (await pulled(alice)).outcome == "blocked"


async def test_a_root_is_read_by_the_engine_that_its_preprocess_pins(tmp_path: Any) -> None:
    def request(version: str | None) -> IngestBatchRequest:
        steps = (SqlQueryStep(query="select * from input"),)
        return IngestBatchRequest(
            dataset_id=b"d" * 34,  # type: ignore[arg-type]  # nobody reads it
            system_time=0,  # type: ignore[arg-type]
            vocab=Vocab(),
            read=ReadCsv(schema=parse_ddl(["a BIGINT"])),
            preprocess=TransformSql(engine="spark", version=version, queries=steps),
            merge=MergeAppend(),
            source_paths=(),
            next_offset=0,
            new_data_path=str(tmp_path / "out"),
        )

    engine, asked = FakeEngine(), []

    async def note(*given: Any) -> Any:
        asked.append(given)

    engine.ingest = note  # type: ignore[method-assign]
    with pytest.raises(Refused, match="preprocess pins") as told_why:
        await ingest(engine, request(MADE_UP))
    assert (told_why.value.rule, asked) == ("engine-changed", [])
    await ingest(engine, request(engine.digest))
    await ingest(engine, request(None))
    assert len(asked) == 2


@pytest.mark.slow
async def test_a_lie_under_a_made_up_pin_counts_for_nothing_and_is_named_where_it_is_used(world: World) -> None:
    """Attack T-VERDICT-03: a made-up pin, so that validators cannot refute a false result.

    Defence: the answer of another engine than the pinned one is no verdict, for `reproduced` as for `attested:K`; under
    `data` each answer, tail and pull that reads such blocks names them.
    """
    async with world.running("alice") as alice, world.running("bob", ATTESTS) as bob:
        alice.engine.wrong = partial(add_to_first, "population", 1000)
        await made(world, alice, MADE_UP)
        async with world.running("carol", listens_to(bob.key, "data & attested:1")) as carol:
            await mirrored(world, alice, carol)
            await mirrored(world, alice, bob)
            (event,) = await bob.heard("verdict.not-reproducible-here")
            assert event.data["reason"] == "engine-not-pinned"
            await carol.heard("attestation.heard")
            trust = await carol.api.trust.show("towns")
            assert (trust.why.rule, trust.why.block, trust.reach.use) == ("engine-not-pinned", 3, 3)
        async with world.running("dave") as dave:
            await mirrored(world, alice, dave)
            assert (await view(dave)).rely_on.blocks == 4, "data alone is used"
            text = f"#3 pinned to {MADE_UP[:19]}…: this engine is not available"
            assert [each.text for each in (await dave.api.trust.show("towns")).unheld] == [text]
            shown = trust_text(await dave.api.trust.show("towns"), world.clock.now(), "odfctl").splitlines()
            assert shown[2] == f"  {text}", "beside how far it may be relied on"
            assert [each.text for each in (await view(dave)).unheld] == [text]
            assert [each.text for each in (await dave.api.datasets.tail("towns", 1)).dataset.unheld] == [text]
            assert f"towns: {text}" in await remarks(dave, "SELECT * FROM towns")
            traced = await dave.done(dave.api.lineage.trace("towns", wire.LineageRequest(record=0)))
            assert traced.remarks == (f"towns: {text}",)
            report = await dave.done(dave.api.verification.verify("towns", IN_FULL))
            assert (report.ok, [each.rule for each in report.failures]) == (False, ["engine-not-here"])
            assert text in report.failures[0].message
            await dave.apply(DERIVED.replace("name: towns", "name: own").replace("cities", "towns"))
            (item,) = await dave.pull("own")
            assert (item.outcome, item.message) == ("updated", f"input towns: {text}")
            assert (await view(dave, "cities")).unheld == ()
            assert (await view(dave, "own")).unheld == ()


@pytest.mark.slow
async def test_equal_rows_of_another_engine_attest_nothing_until_the_pinned_one_is_here(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob", ATTESTS) as bob:
        await made(world, alice, NEW)
        bob.engine.digest = OLD
        async with world.running("carol", listens_to(bob.key, "data & attested:1")) as carol:
            await mirrored(world, alice, carol)
            await mirrored(world, alice, bob)
            (event,) = await bob.heard("verdict.not-reproducible-here")
            assert "another engine than the pinned one gives the same" in event.message
            await carol.heard("attestation.heard")
            (attestation,) = (await carol.api.trust.show("towns")).attestations
            assert attestation.spans == ("reproduced 0-3 (engine-not-pinned)",)
            assert (await carol.api.trust.show("towns")).why.rule == "engine-not-pinned"
            assert not (await bob.api.trust.show("towns")).facts.reproduced
            runs, bob.engine.digest = bob.engine.transforms, NEW
            bob.parts.validator.loop.touch(alice.dataset("towns"))
            await bob.heard("verdict.reproduced")
            assert bob.engine.transforms == runs + 1, "the pinned engine runs it"
            assert (await bob.api.trust.show("towns")).facts.reproduced
            world.clock.instant += 600 * 10**9
            bob.parts.validator.loop.touch(alice.dataset("towns"))
            await carol.heard("attestation.heard", 2)
            assert (await carol.api.trust.show("towns")).reach.use == 4


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [False, True], ids=["affirms", "accuses"])
async def test_a_validator_that_calls_its_engine_the_pinned_one_counts_for_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch, wrong: bool
) -> None:
    """Attack T-VERDICT-03: a validator that calls another engine the pinned one, to affirm or accuse what it could not
    run.

    Defence: the digest that it signed is compared with the pin of each block; a different one is no verdict, and is
    reported as `engine-not-pinned`.

    It signs its own digest, which the chain does not pin, and ``pinned``.
    """

    def lying(by: EngineInUse) -> EngineUsed:
        return msgspec.structs.replace(honest(by), pinned=True)

    honest = reexecution.engine_used
    monkeypatch.setattr(reexecution, "engine_used", lying)
    async with world.running("alice") as alice, world.running("bob", ATTESTS) as bob:
        await made(world, alice, NEW)
        bob.engine.digest = OLD
        bob.engine.wrong = partial(add_to_first, "population", 1) if wrong else None
        async with world.running("carol", listens_to(bob.key, "data & attested:1")) as carol:
            await mirrored(world, alice, carol)
            await mirrored(world, alice, bob)
            await bob.heard("verdict.mismatch" if wrong else "verdict.reproduced")
            await carol.heard("attestation.heard")
            with carol.home.database.read() as connection:
                (signed,) = Ledger(connection).attestations(alice.dataset("towns")).values()
            assert [(each.pinned, each.digest) for each in signed.engines] == [(True, OLD)]
            trust = await carol.api.trust.show("towns")
            assert (trust.why.rule, trust.why.block, trust.reach.use) == ("engine-not-pinned", 3, 3)
            (row,) = (*trust.attestations, *trust.dissent)
            assert row.spans[-1].endswith("(engine-not-pinned)"), "and it is told"
            search, read, dataset = carol.api.search, carol.home.database.read, alice.dataset("towns")
            assert search._vouching(read, dataset).rank == (-1 if wrong else 1), "by its word alone"
            assert search._standing(dataset, await view(carol)).rank == 0, "by the chain, which is here"


@pytest.mark.slow
async def test_statements_are_named_by_the_ids_under_which_they_were_signed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one of which a part does not count, since it calls its engine the pinned one of blocks of another."""
    honest = reexecution.engine_used
    monkeypatch.setattr(reexecution, "engine_used", lambda by: msgspec.structs.replace(honest(by), pinned=True))
    async with world.running("alice") as alice, world.running("bob", ATTESTS) as bob:
        await made(world, alice)
        alice.engine.digest = bob.engine.digest = NEW
        await proven(alice)
        world.write("alice", "b.csv", *MORE)
        await alice.pull()
        async with world.running("carol", listens_to(bob.key, "data & attested:1")) as carol:
            await mirrored(world, alice, carol)
            await mirrored(world, alice, bob)
            await carol.heard("attestation.heard")
            dataset = alice.dataset("towns")
            known = carol.parts.evaluator.known(dataset)
            with carol.home.database.read() as connection:
                (signed,) = Ledger(connection).attestations(dataset).values()
            assert list(known.attestations.values()) != [signed], "a part of it counts for nothing"
            why = ReachBound("accused", 5)
            assert carol.api.trust._rests_on(known, why) == (str(sid(statement.encode(signed))),)


@pytest.mark.slow
async def test_what_a_validator_said_with_the_engine_that_it_had_stays(world: World) -> None:
    """Blocks of before and after are of two engines; the validator, which has one at a time, vouches for both."""
    async with world.running("alice") as alice, world.running("bob", ATTESTS) as bob:
        await made(world, alice)
        bob.engine.digest = OLD
        await mirrored(world, alice, bob)
        await bob.heard("verdict.reproduced")
        bob.engine.digest = NEW
        world.write("alice", "b.csv", *MORE)
        await alice.pull()
        await mirror_on(bob)
        await bob.heard("verdict.not-reproducible-here")
        trust = await bob.api.trust.show("towns")
        assert (trust.reach.use, trust.why.rule) == (4, "engine-not-pinned"), "#3 was reproduced, #4 cannot be"
        assert [(each.first, each.last) for each in trust.unheld] == [(4, 4)]
        alice.engine.digest = NEW
        await proven(alice)
        world.write("alice", "c.csv", "2024-01-04T00:00:00Z,Enns,12000")
        await alice.pull()
        await mirror_on(bob)
        await bob.heard("verdict.reproduced", 2)
        assert bob.size("towns") == 7
        runs, bob.engine.digest = bob.engine.transforms, OLD
        assert await bob.parts.validator.validate(alice.dataset("towns"))
        assert (reproduced_steps(bob), bob.engine.transforms) == ([3, 6], runs), "it loses nothing for #4"


@pytest.mark.slow
async def test_blocks_of_before_an_engine_was_replaced_are_named_by_all_who_have_the_new_one(world: World) -> None:
    """The owner, who made them, can run them again no more than others can."""
    async with world.running("alice") as alice:
        await made(world, alice)
        alice.engine.digest = NEW
        await proven(alice)
        world.write("alice", "b.csv", *MORE)
        await alice.pull()
        text = f"#3 pinned to {OLD[:19]}…: this engine is not available"
        async with world.running("dave") as dave:
            dave.engine.digest = NEW
            await mirrored(world, alice, dave)
            for node in (alice, dave):
                report = await node.done(node.api.verification.verify("towns", IN_FULL))
                assert (report.ok, [each.rule for each in report.failures]) == (False, ["engine-not-here"])
                assert report.failures[0].message == f"{text}; the one here gives the same"
            assert (await told(alice))[2] == "ok", "it goes on with the engine that it has"
            assert [each.text for each in (await view(dave)).unheld] == [text]
            assert text in trust_text(await dave.api.trust.show("towns"), world.clock.now(), "odfctl")
            assert f"towns: {text}" in await remarks(dave, "SELECT * FROM towns")


@pytest.mark.slow
async def test_an_engine_that_cannot_go_on_from_the_old_ones_blocks_ends_there(world: World) -> None:
    """It gives other rows for a block of another engine: nobody is accused, and what that engine gave stays."""
    async with world.running("alice") as alice, world.running("bob", ATTESTS) as bob:
        await made(world, alice)
        bob.engine.digest = OLD
        await mirrored(world, alice, bob)
        await bob.heard("verdict.reproduced")
        alice.engine.digest = NEW
        await proven(alice)
        world.write("alice", "b.csv", *MORE)
        await alice.pull()
        await mirror_on(bob)
        await bob.heard("verdict.not-reproducible-here")
        bob.engine.digest, bob.engine.wrong = NEW, partial(add_to_first, "population", 1)
        assert await bob.parts.validator.validate(alice.dataset("towns"))
        runs = bob.engine.transforms
        assert reproduced_steps(bob) == [3]
        assert "verdict.mismatch" not in bob.kinds()
        trust = await bob.api.trust.show("towns")
        assert (trust.why.rule, trust.why.block) == ("engine-not-pinned", 5)
        assert await bob.parts.validator.validate(alice.dataset("towns"))
        assert bob.engine.transforms == runs, "it is not tried again"


async def remarks(node: Node, sql: str) -> tuple[str, ...]:
    """What an answer says beside its rows."""
    said = bytearray()

    async def take(data: bytes) -> None:
        said.extend(data)

    await node.api.queries.answer(wire.QueryRequest(sql=sql), take)
    head = next(content for kind, content in AnswerFrameReader().feed(bytes(said)) if kind == HEAD)
    return msgspec.json.decode(head, type=wire.QueryHead).remarks


async def mirror_on(node: Node) -> None:
    for name in ("cities", "towns"):
        await node.pull(name)


def reproduced_steps(node: Node) -> list[int]:
    evaluator, dataset = node.parts.evaluator, node.dataset("towns")
    known = evaluator.known(dataset)
    return [step for step in (3, 4, 5, 6) if step < known.size and evaluator.decision(known, step).reproduced]


# What a person set reaches the part that it is for.


RELAY, PEER = peer_of_seed(b"r" * 32), peer_of_seed(b"p" * 32)


def test_the_java_of_the_settings_stands_for_that_of_the_person() -> None:
    settings, person = Settings(), {"PATH": "/bin", "JAVA_HOME": "/old"}
    assert engine_environ(settings, person) == person
    engine = replace(settings.engine, java_home="/opt/java")
    stated = replace(settings, engine=engine)
    assert engine_environ(stated, person) == {"PATH": "/bin", "JAVA_HOME": "/opt/java"}


def test_isolated_datasets_have_as_many_processes_as_is_said(tmp_path: Path) -> None:
    settings = Settings()
    apart = replace(settings, engine=replace(settings.engine, isolation="dataset", max_processes=7))
    with open_state_directory(tmp_path) as home:
        assert spark_options(settings, home).isolation is Isolation.SHARED
        options = spark_options(apart, home)
    assert (options.isolation, options.processes) == (Isolation.DATASET, 7)


def test_an_engine_starts_quickly_where_that_is_said(tmp_path: Path) -> None:
    settings = Settings()
    with open_state_directory(tmp_path) as home:
        assert not spark_options(settings, home).quick
        patient = replace(settings, engine=replace(settings.engine, start_seconds=7.0))
        assert [spark_options(each, home).limits.start for each in (settings, patient)] == [120.0, 7.0]
        assert spark_options(replace(settings, engine=replace(settings.engine, quick_start=True)), home).quick


def test_sources_see_the_variables_that_the_settings_name_and_no_other(tmp_path: Path) -> None:
    environ = {"TOKEN": "hush", "AWS_SECRET_ACCESS_KEY": "hush too"}
    with open_state_directory(tmp_path) as home:
        assert ingest_settings(Settings(), home, environ).variables == {}
        allowing = replace(Settings(), ingest=model.Ingest(variables=("TOKEN", "NOT_SET")))
        assert ingest_settings(allowing, home, environ).variables == {"TOKEN": "hush"}


def test_a_node_hands_its_environment_to_no_source(world: World, monkeypatch: Any) -> None:
    """Attack T-SOURCE-01: a manifest that sends the daemon's tokens to its server.

    Defence: a template sees only the variables in `[ingest] variables`, a `Pipe` nothing of the environment beyond
    them.
    """
    monkeypatch.setenv("SOME_TOKEN", "hush")
    assert world.node("alice").parts.ingest_deps.settings.variables == {}


async def test_what_ingestion_may_do_is_set_and_follows_a_reload(world: World) -> None:
    """A node's own sources, and within their bounds those that strangers declared, which run no commands."""
    said = model.Ingest(source_bytes=1000, silence_seconds=7, pipe="user", pipe_seconds=9, container="offline")
    async with world.running("alice", ingest=said) as alice:
        parts = alice.parts
        for _ in range(2):
            own, strange = parts.ingest_deps.settings, parts.observer.deps.settings
            assert (own.max_source_bytes, own.pipe, own.pipe_timeout, own.container) == (
                said.source_bytes, said.pipe, said.pipe_seconds, said.container
            )  # fmt: skip
            assert own.patience == strange.patience == Patience(
                said.connect_seconds, said.silence_seconds, said.silence_seconds,
                round(said.least_rate * said.silence_seconds), said.fetch_seconds,
            )  # fmt: skip
            assert strange.max_source_bytes == said.source_bytes
            assert (strange.pipe, strange.container, dict(strange.variables)) == ("never", "never", {})
            said = model.Ingest(
                connect_seconds=3,
                fetch_seconds=4,
                least_rate=5,
                source_bytes=2000,
                silence_seconds=8,
                pipe="never",
                pipe_seconds=10,
                container="network",
            )
            alice.assembly.reload(model.Settings(ingest=said))


async def test_uploads_and_ingestion_keep_the_reserve_of_the_disk(world: World) -> None:
    """They filled it to its last byte; the reserve and the size of an upload follow a reload."""

    async def chunks() -> AsyncIterator[bytes]:
        yield b"event_time,city,population\n"

    async with world.running("alice") as alice:
        await alice.apply(ROOT)
        world.write("alice", "a.csv", "2024-01-01T00:00:00Z,Graz,300000")
        alice.assembly.reload(model.Settings(limits=model.Limits(disk_reserve_bytes=1 << 60)))
        with pytest.raises(Environment) as caught:
            await alice.api.flow.stage("a.csv", chunks())
        assert caught.value.rule == "disk-reserve"
        (item,) = await alice.pull("cities")
        assert (item.outcome, item.fault.rule) == ("failed", "disk-reserve")
        alice.assembly.reload(model.Settings(limits=model.Limits(upload_bytes=5)))
        with pytest.raises(Refused, match="has more than 5 bytes"):
            await alice.api.flow.stage("a.csv", chunks())
        assert (await alice.pull("cities"))[0].outcome == "updated"


@pytest.mark.parametrize("text", ["/ip4/1.2.3.4/tcp/1", f"/ip4/1.2.3.4/tcp/1/p2p/{RELAY}/p2p-circuit/p2p/{PEER}", "/x"])
def test_a_relay_is_named_with_its_peer_and_where_it_is(tmp_path: Path, text: str) -> None:
    where = f"/ip4/1.2.3.4/tcp/4150/p2p/{RELAY}"
    with open_state_directory(tmp_path) as home:
        options = host_options(Settings(p2p=model.P2p(relays=(where,), relay=True)), home, Bandwidth())
        assert options.relays == (where,)
        assert options.relay is not None
        assert host_options(Settings(), home, Bandwidth()).relay is None
        with pytest.raises(Invalid) as refused:
            host_options(Settings(p2p=model.P2p(relays=(text,))), home, Bandwidth())
    assert refused.value.hint


async def test_caps_follow_a_reload(world: World) -> None:
    """Of the line, of objects, of all mirrors' data, of what the disk keeps: also for what is under way."""
    async with world.running("alice") as alice:
        line, object_fetcher = alice.parts.bandwidth, alice.parts.object_fetcher
        assert (line.down.rate, line.up.rate, object_fetcher.room.limit) == (0, 0, 0)
        limits = model.Limits(mirror_bytes=7000, object_bytes=600, disk_reserve_bytes=50)
        p2p = model.P2p(download_rate=10, upload_rate=20, relay_rate=30)
        alice.assembly.reload(model.Settings(p2p=p2p, limits=limits))
        assert (line.down.rate, line.up.rate, object_fetcher.room.limit) == (10, 20, 7000)
        assert line.carried.rate == 30
        assert (object_fetcher.limits.object_bytes, object_fetcher.limits.disk_reserve) == (600, 50)
        assert alice.parts.object_fetcher.limits.disk_reserve == 50

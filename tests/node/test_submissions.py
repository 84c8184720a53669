"""Public witnesses: asked after each head; what they sign is kept, spread, and counted by whoever lists them."""

from __future__ import annotations

from typing import Any

import trio

from chain.errors import Remote
from chain.ids import DatasetId
from chain.instant import SECOND, Instant
from chain.statements import checkpoint, cosignature, submission
from chain.statements.checkpoint import COSIGNATURE_KEY, TreeCheckpoint
from chain.statements.cosignature import Cosignature
from chain.statements.keys import SigningKey
from config import model
from odfd.policy.witness_quorum import read_witness
from odfd.services.trust.witness_submission import PAUSE, ROUND_SECONDS, WitnessSubmission
from odfd.store.ledger.cosignatures import Cosignatures
from odfd.store.mirror_specs import MirrorSpec
from odfd.trust.witness.submission import LONGEST, SOON
from odfd.trust.witness.witness import RENEW, ConsistencyResult, KnownTree, rule, shown_by
from p2p.web.client import HttpAnswer
from worlds.eventually import PATIENCE
from worlds.manifests import ROOT
from worlds.node_world import Node, World

ROWS = ("2024-01-01T00:00:00Z,Graz,300000", "2024-01-02T00:00:00Z,Linz,210000")
NAME = "witness.example/w1"
KEY = SigningKey(b"p" * 32)
VKEY = checkpoint.verifier_key(NAME, COSIGNATURE_KEY, KEY.public)
URL = "https://witness.example"
LISTS = model.Policy(witness=model.Witness(quorum=1, groups=(model.Group(name="w1", keys=(VKEY,)),)))


class Public:
    """A public witness by the book: it knows what it was shown, and answers by the rules of tlog-witness."""

    def __init__(self, clock: Any) -> None:
        self.clock = clock
        self.last: dict[str, KnownTree] = {}
        self.asked: list[tuple[str, int, int]] = []
        self.answers: list[HttpAnswer | Remote] = []
        """What it says before it does its duty."""

    async def post(self, url: str, body: bytes, limit: int) -> HttpAnswer:
        assert limit == submission.MAX_ANSWER
        read = submission.decode(body)
        self.asked.append((url, read.old, read.tree.size))
        if self.answers:
            said = self.answers.pop(0)
            if isinstance(said, Remote):
                raise said
            return said
        new, known = KnownTree(read.tree.size, read.tree.root_hash), self.last.get(read.tree.origin)
        ruling = rule([known] if known else [], read.old, new, shown_by(read.proof, read.old, new))
        if ruling is ConsistencyResult.CONFLICT:
            return HttpAnswer(409, f"{known.size if known else 0}\n".encode())
        if ruling is not ConsistencyResult.COSIGN:
            return HttpAnswer(422, b"no\n")
        self.last[read.tree.origin] = new
        made = checkpoint.decode_line(cosignature.cosign(KEY, read.tree, self.clock.now()).line).data
        return HttpAnswer(200, cosignature.line_of(checkpoint.decode_verifier_key(VKEY), made).encode())


def cosigned(node: Node, dataset: DatasetId) -> list[Cosignature]:
    with node.home.database.read() as connection:
        return Cosignatures(connection).of(dataset)


class Bench:
    """A publisher's submissions, a round at a time, before a witness of the test's own."""

    def __init__(self, world: World, node: Node, dataset: DatasetId) -> None:
        self.world, self.node, self.dataset = world, node, dataset
        self.public = Public(world.clock)
        self.files = 0
        self.start()

    def start(self) -> None:
        """Anew, as after a restart: nothing is remembered but the database."""
        parts = self.node.parts
        made = self.node.submissions()
        self.made = WitnessSubmission(
            made._home, lambda: (read_witness(f"{VKEY} {URL}"),), self.world.clock, made._cosigned,
            parts.context.logger, self.public,
        )  # fmt: skip

    async def round(self, after: float = PAUSE) -> float:
        self.world.clock.instant += int(after * SECOND)
        self.made.loop.touch(self.dataset)
        return await self.made._round()

    async def grow(self) -> int:
        self.files += 1
        self.world.write("alice", f"b{self.files}.csv", f"2024-02-0{self.files}T00:00:00Z,Wels,{self.files}")
        await self.node.pull("cities")
        return int(self.node.size("cities"))

    @property
    def sizes(self) -> list[tuple[int, int]]:
        return [(old, new) for _, old, new in self.public.asked]

    @property
    def troubles(self) -> list[str]:
        return [str(values["why"]) for said, values in self.node.logger.said if said.startswith("a public witness")]


async def bench_of(world: World, alice: Node) -> Bench:
    world.write("alice", "a.csv", *ROWS)
    await alice.apply(ROOT)
    await alice.pull()
    return Bench(world, alice, alice.dataset("cities"))


async def test_each_head_is_submitted_and_its_cosignature_spreads(world: World) -> None:
    """A newcomer elsewhere who lists the witness by its public name comes in on the second rung."""
    async with world.running("alice") as alice, world.running("bob") as bob:
        bench = await bench_of(world, alice)
        first = alice.size("cities")
        await bench.round()
        await bench.round()
        second = await bench.grow()
        await bench.round()
        assert bench.public.asked == [(f"{URL}/add-checkpoint", 0, first), (f"{URL}/add-checkpoint", first, second)]
        (made,) = cosigned(alice, bench.dataset)
        assert (made.witness, made.checkpoint.size) == (KEY.did, second)
        await bob.parts.scheduler.add(MirrorSpec(dataset=str(bench.dataset), name="theirs"))
        with trio.fail_after(PATIENCE):
            while cosigned(bob, bench.dataset) != [made]:
                await bob.member.pull_statements(alice.member.peer_id, [bench.dataset])
        async with world.running("carol", LISTS) as carol:
            await carol.parts.scheduler.add(MirrorSpec(dataset=str(bench.dataset), name="theirs"))
            await carol.parts.scheduler.pass_now(bench.dataset)
            assert (await carol.api.trust.show("theirs")).facts.met == "witnessed"


async def test_a_publisher_that_lost_its_cosignatures_learns_where_the_witness_stands(world: World) -> None:
    async with world.running("alice") as alice:
        bench = await bench_of(world, alice)
        await bench.round()
        first = alice.size("cities")
        with alice.home.database.write() as connection:
            connection.execute("DELETE FROM trust_cosignatures")
        second = await bench.grow()
        bench.start()
        await bench.round()
        assert bench.sizes == [(0, first), (0, second), (first, second)]
        assert [each.checkpoint.size for each in cosigned(alice, bench.dataset)] == [second]


async def test_nobody_is_asked_oftener_than_the_pause(world: World) -> None:
    async with world.running("alice") as alice:
        bench = await bench_of(world, alice)
        assert await bench.round() <= PAUSE
        await bench.grow()
        await bench.grow()
        await bench.round(after=PAUSE / 2)
        assert len(bench.sizes) == 1
        await bench.round(after=PAUSE / 2)
        assert [new for _, new in bench.sizes] == [alice.size("cities") - 2, alice.size("cities")], "the last alone"


async def test_a_cosignature_that_ages_is_made_anew(world: World) -> None:
    async with world.running("alice") as alice:
        bench = await bench_of(world, alice)
        await bench.round()
        (first,) = cosigned(alice, bench.dataset)
        await bench.round(after=RENEW / SECOND)
        (again,) = cosigned(alice, bench.dataset)
        size = alice.size("cities")
        assert bench.sizes == [(0, size), (size, size)]
        assert (again.checkpoint, again.at > first.at) == (first.checkpoint, True)


async def test_a_witness_that_is_away_is_asked_ever_later(world: World) -> None:
    """And told of once; when it is back it is asked again."""
    async with world.running("alice") as alice:
        bench = await bench_of(world, alice)
        away = Remote("nothing in 30 s", rule="web-slow")
        bench.public.answers = [away] * 12
        pause = SOON
        for count in range(1, 12):
            await bench.round(after=0)
            assert len(bench.sizes) == count
            await bench.round(after=pause * 0.9)
            assert len(bench.sizes) == count, "not before the pause is over"
            world.clock.instant += int(pause * 0.1 * SECOND)
            pause = min(2 * pause, LONGEST)
        assert bench.troubles == [str(away)]
        await bench.round(after=LONGEST)
        await bench.round(after=LONGEST)
        assert [each.checkpoint.size for each in cosigned(alice, bench.dataset)] == [alice.size("cities")]


async def test_one_that_is_away_is_not_asked_for_every_dataset(world: World) -> None:
    async with world.running("alice") as alice:
        bench = await bench_of(world, alice)
        await alice.apply(ROOT.replace("cities", "towns"))
        bench.public.answers = [Remote("nothing in 30 s", rule="web-slow")]
        await bench.round()
        assert len(bench.sizes) == 1
        bench.public.answers = [HttpAnswer(404, b"unknown log")]
        await bench.round(after=SOON)
        assert len(bench.sizes) == 3, "one that refuses a log may know another"
        (told,) = [text for text in bench.troubles if "does not know this log" in text]
        keys = [str(values.get("log_key")) for said, values in alice.logger.said if said.startswith("a public")]
        assert any(f"+{checkpoint.decode_verifier_key(key).key_id.hex()}+" in key for key in keys), told


async def test_of_many_datasets_only_what_moved_is_looked_at(world: World, monkeypatch: Any) -> None:
    async with world.running("alice") as alice:
        bench = await bench_of(world, alice)
        await alice.apply(ROOT.replace("cities", "towns"))
        looked: list[DatasetId] = []
        due = bench.made._due
        monkeypatch.setattr(bench.made, "_due", lambda dataset, who: (looked.append(dataset), due(dataset, who))[1])
        await bench.round()
        assert set(looked) == {alice.dataset("cities"), alice.dataset("towns")}
        looked.clear()
        await bench.round()
        assert looked == [alice.dataset("cities")]
        looked.clear()
        await bench.round(after=ROUND_SECONDS)
        assert len(looked) == 2, "what ages is renewed"


async def test_garbage_is_kept_nowhere(world: World) -> None:
    async with world.running("alice") as alice:
        bench = await bench_of(world, alice)
        other = cosignature.cosign(KEY, TreeCheckpoint(bench.dataset, 0, 1, b"?" * 32), world.clock.now())
        early = cosignature.cosign(KEY, TreeCheckpoint(bench.dataset, 0, 1, b"?" * 32), Instant(world.clock.now() * 2))
        for body in (b"", b"\xff" * 100, other.line.encode(), early.line.encode()):
            bench.public.answers = [HttpAnswer(200, body)]
            await bench.round(after=LONGEST)
        assert cosigned(alice, bench.dataset) == []
        assert len(bench.sizes) == 4


async def test_of_others_datasets_nothing_is_submitted(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        bench = await bench_of(world, alice)
        await bob.mirror(bench.dataset, "theirs")
        theirs = Bench(world, bob, bench.dataset)
        await theirs.round()
        assert theirs.sizes == []


async def test_a_key_that_forgot_what_it_said_signs_no_note(world: World) -> None:
    async with world.running("alice") as alice:
        bench = await bench_of(world, alice)
        keys = alice.home.keys
        for journal in (alice.home.directory / "keys").glob("*.journal"):
            journal.unlink()
        keys._journals.clear()
        await bench.round()
        assert bench.sizes == []
        assert ("not submitted", "trust.journal") in [(said, values.get("rule")) for said, values in alice.logger.said]


async def test_a_person_sees_who_stands_behind_a_dataset_and_why_not(world: World) -> None:
    """The publisher sees those that it asks, with what their operators need; others see those that count for them."""
    nowhere = model.Policy(witness=model.Witness(public=(f"{VKEY} http://127.0.0.1:1",)))
    async with world.running("alice", nowhere) as alice, world.running("bob", LISTS) as bob:
        bench = await bench_of(world, alice)
        (view,) = (await alice.api.trust.show("cities")).witnesses
        assert view.size is None, "nothing listens there"
        alice.features.trust.submissions = bench.made
        (view,) = (await alice.api.trust.show("cities")).witnesses
        assert (view.witness, view.name, view.counts, view.size) == (str(KEY.did), NAME, False, None)
        assert (view.trouble, view.log_key) == ("it was not asked yet", "")
        bench.public.answers = [HttpAnswer(404, b"unknown log")]
        await bench.round()
        (view,) = (await alice.api.trust.show("cities")).witnesses
        key = checkpoint.decode_verifier_key(view.log_key)
        assert (key.name, "does not know this log" in view.trouble) == (f"{bench.dataset}/0", True)
        assert key.public_key == alice.home.keys.dataset_key(bench.dataset).public
        await bench.round(after=LONGEST)
        (view,) = (await alice.api.trust.show("cities")).witnesses
        assert (view.size, view.trouble, view.log_key) == (alice.size("cities"), "", "")
        await bob.member.pull_statements(alice.member.peer_id, [bench.dataset])
        await bob.mirror(bench.dataset, "theirs")
        (view,) = (await bob.api.trust.show("theirs")).witnesses
        assert (view.name, view.counts, view.size) == ("w1", True, bob.size("theirs"))

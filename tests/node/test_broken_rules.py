"""Each rule that a collection rests on is broken once, in the code of the product: what must hold then does not.

The rules are those that specifications of collections in other systems were broken by. Where the product has no chain
of bindings, the rule is the one that took its place: captures for bindings, the frontier for that of the bindings.
"""

from __future__ import annotations

import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import pytest
import trio
from node.test_quarantine import counts, filled, push, replayed
from node.test_shards import answered, standing
from node.test_shards_of_peers import CITIES, brought, passed, sharded

from chain.errors import Conflict, NotFound, Refused
from chain.instant import SECOND, Instant
from chain.state import load_state
from chain.store import append, uppers
from chain.store.base import UpperMove
from odfd.control import wire
from odfd.datasets import shard_reading
from odfd.ingest import driver, raw_replay
from odfd.ingest.clients import kafka
from odfd.ingest.clients.kafka import TopicPosition
from odfd.queries import sharded_cuts
from odfd.services.renditions.effects import RenditionEffects
from odfd.store import captures, pushes
from odfd.store.directory import StateDirectory, open_state_directory
from odfd.store.spool import PushSpool, Receipt
from odfd.trust.signing import owner_commit
from odfd.trust.signing.owner_commit import OwnerCommitter
from sim.collections.test_handover import MUTANTS as HANDOVERS
from sim.collections.test_handover import PLANS, explore
from sim.store.test_commits import test_a_capture_and_its_block_are_there_together as captures_hold
from sim.store.test_commits import test_one_of_two_writers_wins_and_every_message_is_there_once as writers_hold
from worlds.manifests import GATE, ROOT
from worlds.node_world import World


class Died(Exception):
    """The process ended after a durable effect."""


Patch = Callable[[pytest.MonkeyPatch, Any], None]
Property = Callable[[Any, Any], Awaitable[None]]


async def decoded_anew(world: World) -> None:
    """Blocks are a function of the history before them, their time and the captured bytes, wherever they are made."""
    async with world.running("alice") as alice:
        await filled(world, alice, "{kind: Ledger, primaryKey: [city]}")
        view = await alice.api.raw.show("cities")
        assert counts(await replayed(alice)) == (view.count, 0, 0, 0)
        world.clock.instant += 3_600 * SECOND
        made = await alice.done(alice.api.renditions.create("cities", wire.RenditionRequest()))
        said = [
            (await answered(alice, wire.QueryRequest(sql=f'SELECT * FROM "{name}" ORDER BY "offset"')))[0]
            for name in ("cities", made.dataset)
        ]
        assert said[0] == said[1]


async def read_at_one_time(world: World) -> None:
    """A mirror of shards reads no transaction in part, also where one begins at the very frontier of a late shard."""
    async with world.running("alice") as alice, world.running("bob") as bob:
        await sharded(world, alice)
        await bob.mirror(alice.dataset("cities"), "cities")
        await alice.done(alice.api.flow.advance("cities"))
        await passed(bob)
        before = await standing(bob, "cities")
        shards = bob.home.shards_of(bob.dataset("cities"))
        await bob.api.mirrors.pause(str(shards[-1]))
        world.clock.instant -= 3_600 * SECOND  # so the next transaction has the time of the frontier
        await brought(world, alice, 2, *CITIES)
        for each in shards[:-1]:
            await bob.parts.scheduler.pass_now(each)
        assert await standing(bob, "cities") == before
        await bob.api.mirrors.resume(str(shards[-1]))
        await passed(bob)
        assert await standing(bob, "cities") == await standing(alice, "cities")


async def pushed_once(world: World) -> None:
    """Whoever did not hear an answer asks again, and nothing comes twice."""
    async with world.running("alice") as alice:
        await alice.apply(GATE)
        for _ in range(2):
            await push(alice, "a.csv", "2024-01-01T00:00:00Z,Graz,1")
        assert (await alice.dataset_view("readings")).records == 1


async def receipted(world: World) -> None:
    """What was receipted is there, whenever the process ends."""
    with tempfile.TemporaryDirectory() as folder, open_state_directory(Path(folder) / "state") as home:
        (Path(folder) / "one").mkdir()
        receipt = PushSpool(home.database, Path(folder), lambda: 1 << 20).add("one", b"{}", 1, Instant(1), None)
        found, _ = PushSpool(home.database, Path(folder), lambda: 1 << 20).after("one", 0, 10, 1 << 20)
        assert (receipt.durable, [each.number for each in found]) == (True, [receipt.number])


async def dropped_or_read(world: World) -> None:
    """A former rendition is read whole, or refused as gone, wherever the process that drops it ends."""
    rows = []
    async with world.running("alice") as alice:
        await alice.apply(ROOT)
        await alice.api.visibility.unpublish(wire.VisibilityRequest(refs=("cities",)))
        world.write("alice", "a.csv", "2024-01-01T00:00:00Z,Graz,1")
        await alice.pull("cities")
        await alice.done(alice.api.renditions.create("cities", wire.RenditionRequest(origin="snapshot")))
        await alice.done(alice.api.renditions.hand_over("cities", 1, wire.HandoverRequest()))
        rows = await standing(alice, "cities")
        effects = alice.api.renditions._effects

        def die(name: str) -> None:
            raise Died(name)

        effects.step = die
        with pytest.raises(Died):
            await trio.to_thread.run_sync(effects.drop, effects.state(alice.dataset("cities")).member(0))
    async with world.running("alice") as alice:
        try:
            assert await standing(alice, "cities.r0") == rows
        except NotFound as gone:
            assert gone.rule == "rendition-dropped"  # noqa: PT017  either of the two may be
        assert await standing(alice, "cities") == rows


async def topics_apart(world: World) -> None:
    """A topic that is made again under its name counts other messages."""
    after = TopicPosition(topic="made first", next={"0": 5})
    assert kafka.starts(after, "made first", [0]) == {0: 5}
    with pytest.raises(Refused, match="made again"):
        kafka.starts(after, "made again", [0])


async def commits_apart(world: World) -> None:
    """Of several plans on one state one is taken, and no block is of a time that was complete."""
    lost = [("plan", 0, 2), ("plan", 1, 1), ("commit", 0, 0), ("commit", 1, 0)]
    late = [("tick", 0, 5), ("plan", 0, 1), ("promise", 0, 3), ("commit", 0, 0)]
    for steps in (lost, late, [*lost, *late], [("plan", 0, 1), ("commit-durable", 0, 0), *lost]):
        await trio.to_thread.run_sync(writers_hold.hypothesis.inner_test, steps)  # type: ignore[attr-defined]


async def captures_whole(world: World) -> None:
    """A capture, its bytes and its blocks are there together, wherever the process ends, and stay."""
    for shards in (1, 3):
        lives = [(1, "", True), (1, "commit-durable", True), (1, "object-synced", False), (1, "", True)]
        await trio.to_thread.run_sync(captures_hold.hypothesis.inner_test, lives, shards)  # type: ignore[attr-defined]


async def hands_over(world: World) -> None:
    """What readers have is the active rendition, in each state of a small world."""
    await trio.to_thread.run_sync(explore, PLANS[0])


class Mutant(NamedTuple):
    breaks: Patch
    holds: Property


def handover(name: str) -> Mutant:
    def breaks(patch: pytest.MonkeyPatch, world: World) -> None:
        for module, place, broken in HANDOVERS[name]:
            patch.setattr(module, place, broken)

    return Mutant(breaks, hands_over)


def _clock(patch: pytest.MonkeyPatch, world: World) -> None:
    patch.setattr(raw_replay, "from_millis", lambda _: world.clock.instant)


def _furthest(patch: pytest.MonkeyPatch, _: Any) -> None:
    patch.setattr(shard_reading, "min", max, raising=False)


def _latest(patch: pytest.MonkeyPatch, _: Any) -> None:
    patch.setattr(raw_replay, "load_state", lambda chain, _size: load_state(chain))


def _own_plan(patch: pytest.MonkeyPatch, _: Any) -> None:
    commit = OwnerCommitter.commit

    async def stubborn(self: OwnerCommitter, work: Any) -> Any:
        try:
            return await commit(self, work)
        except Conflict:
            (part,) = work.parts
            head, upper = self._chains.chain(part.dataset).head(), UpperMove(self._chains.upper(part.dataset))
            part = msgspec.structs.replace(part, expected=head, upper=upper)
            return await commit(self, msgspec.structs.replace(work, parts=(part,)))

    patch.setattr(OwnerCommitter, "commit", stubborn)


def _again(patch: pytest.MonkeyPatch, _: Any) -> None:
    patch.setattr(pushes, "find", lambda *_: None)


def _capture_after(patch: pytest.MonkeyPatch, _: Any) -> None:
    commit, keep, waiting = OwnerCommitter.commit, captures.keep, list[Any]()

    async def apart(self: OwnerCommitter, *work: Any) -> Any:
        waiting.clear()
        head = await commit(self, *work)
        with self._database.write() as connection:
            for each in waiting:
                keep(connection, *each)
        return head

    patch.setattr(captures, "keep", lambda _, *said: waiting.append(said))
    patch.setattr(OwnerCommitter, "commit", apart)


def _bytes_after(patch: pytest.MonkeyPatch, _: Any) -> None:
    captured = driver.keep_raw

    def named_alone(objects: Any, *of: Any) -> Any:
        found = captured(objects, *of)
        for each in found.files:
            objects.remove(each.object)
        return found

    patch.setattr(driver, "keep_raw", named_alone)


def _receipt_first(patch: pytest.MonkeyPatch, _: Any) -> None:
    def promised(_self: PushSpool, kept: Any) -> None:
        for push_, number in kept:
            push_.answer = Receipt(number=number, records=push_.pushed.records, bytes=push_.bytes, durable=True)

    patch.setattr(PushSpool, "_record", promised)


def _freed(patch: pytest.MonkeyPatch, _: Any) -> None:
    patch.setattr(captures, "objects", lambda _: frozenset())


def _ahead(patch: pytest.MonkeyPatch, _: Any) -> None:
    patch.setattr(uppers, "check", lambda *_: None)


def _unlike(patch: pytest.MonkeyPatch, _: Any) -> None:
    patch.setattr(append, "check_expected", lambda *_: None)
    patch.setattr(owner_commit, "check_head", lambda *_: None)


def _at_upper(patch: pytest.MonkeyPatch, _: Any) -> None:
    complete = sharded_cuts.find_complete_time

    def hasty(home: StateDirectory, shards: Any) -> int | None:
        found = complete(home, shards)
        return None if found is None else found + 1

    patch.setattr(sharded_cuts, "find_complete_time", hasty)


def _any_topic(patch: pytest.MonkeyPatch, _: Any) -> None:
    starts = kafka.starts

    def by_name(after: TopicPosition | None, topic: str, partitions: list[int]) -> dict[int, int]:
        return starts(None if after is None else msgspec.structs.replace(after, topic=topic), topic, partitions)

    patch.setattr(kafka, "starts", by_name)


def _unlinked(patch: pytest.MonkeyPatch, _: Any) -> None:
    drop = RenditionEffects.drop

    def swept_first(self: RenditionEffects, member: Any) -> None:
        self.sweep(member)
        self.step("swept")
        drop(self, member)

    patch.setattr(RenditionEffects, "drop", swept_first)


MUTANTS: Final = {
    "wall clock in a block": Mutant(_clock, decoded_anew),
    "start at max upper": Mutant(_furthest, read_at_one_time),
    "latest state": Mutant(_latest, decoded_anew),
    "own proposal after a lost race": Mutant(_own_plan, commits_apart),
    "blind retry": Mutant(_again, pushed_once),
    "data before binding": Mutant(_capture_after, captures_whole),
    "bind before capture": Mutant(_bytes_after, decoded_anew),
    "ack before binding": Mutant(_receipt_first, receipted),
    "capture freed at binding": Mutant(_freed, captures_whole),
    "upper beyond what is bound": Mutant(_ahead, commits_apart),
    "the new rendition is read at the handover less the old one then": handover(
        "the new rendition is read less the old one at the handover"
    ),
    "past M": handover("readers pass what M promised"),
    "handover below the upper of M": handover("a handover at a time that was promised"),
    "a hold one time before a handover releases": handover("a hold one time before a handover frees the old rendition"),
    "no command id": handover("a command that is done is not looked for in M"),
    "no comparison": Mutant(_unlike, commits_apart),
    "as of the upper, not before it": Mutant(_at_upper, read_at_one_time),
    "topic name as part": Mutant(_any_topic, topics_apart),
    "unlink before mark": Mutant(_unlinked, dropped_or_read),
}
PROPERTIES: Final = list(dict.fromkeys(each.holds for each in MUTANTS.values()))


@pytest.mark.parametrize("holds", PROPERTIES, ids=lambda each: each.__name__)
async def test_what_must_hold_holds(world: World, holds: Property) -> None:
    await holds(world)


@pytest.mark.parametrize("mutant", MUTANTS)
async def test_each_broken_rule_of_collections_is_caught(
    world: World, monkeypatch: pytest.MonkeyPatch, mutant: str
) -> None:
    MUTANTS[mutant].breaks(monkeypatch, world)
    with pytest.raises(BaseException) as caught:
        await MUTANTS[mutant].holds(world)
    assert not isinstance(caught.value, trio.Cancelled | KeyboardInterrupt)


def test_the_rules_are_nineteen() -> None:
    assert len(MUTANTS) == 19

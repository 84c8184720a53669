"""Several instances bind positions of a topic that forgets, compacts and is made again: each byte is as from one.

As ``test_instances`` for files. The chains are compared with those that one instance alone writes from the bindings
that came out, and from a topic that forgets nothing. Each rule that is broken on purpose is caught by one of them.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as some

from chain.data.partition import shard_of_part
from chain.errors import NotFound, Refused, Remote
from chain.instant import SECOND, Instant, from_millis, to_millis
from chain.state import load_state
from chain.store.shards import Committed, Outcome
from odfd.ingest.brokers.job import FORGOT, POSITION_RULE, REWROTE, decode_position
from odfd.ingest.capture_bindings import FOUNDING, binding_of
from odfd.ingest.gaps import GAP_CHANGED, GAP_NONE
from odfd.reclock.instance import Instance
from worlds import topics
from worlds.instances import House, ThreeInstances, rows_in
from worlds.one_thread import ran
from worlds.seeds import examples
from worlds.topics import ModelTopic, message

PARTITIONS = 3
_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
ACTIONS = some.one_of(
    some.tuples(some.just("send"), some.integers(0, PARTITIONS - 1), some.integers(1, 5)),
    some.tuples(some.just("step"), some.integers(0, 2), some.none()),
    some.tuples(some.just("race"), some.integers(0, 2), some.integers(0, 2)),
    some.tuples(some.just("die"), some.integers(0, 2), some.tuples(some.integers(1, 9), some.booleans())),
    some.tuples(some.just("jump"), some.integers(0, 2), some.integers(-7200, 7200)),
    some.tuples(some.just("release"), some.integers(0, PARTITIONS - 1), some.none()),
    some.tuples(some.just("forget"), some.integers(0, PARTITIONS - 1), some.integers(1, 3)),
    some.tuples(some.just("accept"), some.integers(0, 2), some.integers(0, 2)),
)


class World(ThreeInstances):
    """Three instances over one topic."""

    def __init__(self, folder: Path, shards: int, *, by_part: bool = False, keep_raw: bool = False) -> None:
        house = House(folder)
        self.topic = house.topic = ModelTopic(PARTITIONS)
        super().__init__(house, house.begin(shards, by_part=by_part, keep_raw=keep_raw))
        self.sent = self.lost = 0

    def send(self, partition: int, count: int) -> None:
        self.topic.send(*(message("Graz", self.sent + each) for each in range(count)), partition=partition)
        self.sent += count

    def release(self, partition: int) -> None:
        """The topic lets go of what the shards have, as its operator may."""
        _, place, _ = self.instance(0)
        shard = self.instance(0)[0].layout.shards[0]
        place.read([shard, self.chain])
        state = load_state(place.chains.chain(shard)).source_state
        if state is not None:
            self.topic.forget(decode_position(state.value).next.get(str(partition), 0), partition)

    def forget(self, partition: int, count: int) -> None:
        """The topic lets go of messages, whether the shards have them or not, once some of the partition were bound.

        A partition of which nothing was taken is read from its first message.
        """
        if not any(part == f"topic-1/{partition}" for part, _, _ in self.ranges()):
            return
        self.topic.forget(self.topic.low[partition] + count, partition)

    def step(self, number: int) -> None:
        with _stopped():
            super().step(number)

    def die(self, number: int, at: int, *, after: bool) -> None:
        with _stopped():
            super().die(number, at, after=after)
        if (found := self.alive[number]) is not None:
            found[2].dies_at = 0

    def accept(self, number: int, other: int | None = None) -> None:
        """Accepts the gap, if there is one, as one instance finds it; ``other`` takes a step before the commit."""
        instance, _, files = self.instance(number)
        gap = ran(instance.gap)
        if gap is None:
            return
        if other is not None and other != number:
            files.before_commit = lambda: self.step(other)
        try:
            ran(instance.accept_gap, gap.name)
            self.lost += gap.count
        except Refused as error:
            if error.rule != GAP_CHANGED:
                raise
        files.before_commit = None

    def ranges(self) -> list[tuple[str, int, int]]:
        """All ranges that were bound and not cancelled, in order."""
        place, _ = self.house.place()
        place.read([self.chain])
        chain = place.chains.chain(self.chain)
        head = chain.head()
        assert head is not None
        blocks = [chain.block_at(number) for number in range(FOUNDING, head.size)]
        found = {to_millis(each.system_time): binding_of(place.objects, [each]) for each in blocks}
        place.close()
        cancelled = {each.cancels for each in found.values()}
        kept = [one for time, one in found.items() if time not in cancelled]
        return [(each.part, each.start, each.end) for one in kept for each in one.ranges]

    def check(self) -> None:
        """All chains are those of one instance alone, and each message is in one row."""
        found = self.house.chains(self.chain)
        ends: dict[str, int] = {}
        for part, start, end in self.ranges():
            assert ends.get(part, 0) == start, "each address is bound once"
            ends[part] = end
        rows = sum(rows_in(raws) for each, (_, raws) in found.items() if each != self.chain)
        assert rows == self.sent - self.lost, "each address gives its row"
        assert found == self.house.as_one_alone(self.chain)


@contextlib.contextmanager
def _stopped() -> Iterator[None]:
    """A step may stop by name where the topic forgot."""
    try:
        yield
    except Refused as error:
        if error.rule not in {FORGOT, POSITION_RULE}:
            raise


@contextlib.contextmanager
def world(shards: int, **more: Any) -> Iterator[World]:
    with tempfile.TemporaryDirectory(dir=_MEMORY) as folder:
        made = World(Path(folder), shards, **more)
        yield made
        made.close()


@settings(max_examples=examples(8))
@given(
    shards=some.sampled_from([1, 3]), by_part=some.booleans(), keep_raw=some.booleans(),
    actions=some.lists(ACTIONS, max_size=14),
)  # fmt: skip
def test_blocks_are_those_of_one_instance_alone(
    shards: int, by_part: bool, keep_raw: bool, actions: list[tuple[str, int, Any]]
) -> None:
    with world(shards, by_part=by_part and shards > 1, keep_raw=keep_raw) as made:
        made.send(0, 1)
        for kind, first, second in actions:
            match kind:
                case "send":
                    made.send(first, second)
                case "step":
                    made.step(first)
                case "race":
                    made.race(first, second)
                case "die":
                    made.die(first, second[0], after=second[1])
                case "jump":
                    made.clocks[first] += second * SECOND
                case "release":
                    made.release(first)
                case "forget":
                    made.forget(first, second)
                case "accept":
                    made.accept(first, second)
        made.accept(2)
        made.drain(1)
        made.check()


def test_a_gap_is_accepted_by_its_name_and_what_the_topic_still_has_is_taken() -> None:
    """Of what was bound and gone no more is given up than is gone; who has bytes of it comes too late by name."""
    with world(3) as made:
        made.send(0, 3)
        made.send(1, 2)
        made.step(0)
        made.topic.forget(2)
        late = made.instance(1)[0]
        gap = ran(late.gap)
        assert gap is not None
        assert ([(each.part, each.start, each.end) for each in gap.ranges], gap.count) == ([("topic-1/0", 0, 2)], 2)
        with pytest.raises(Refused) as caught:
            ran(late.accept_gap, "another")
        assert caught.value.rule == GAP_CHANGED
        done = ran(late.accept_gap, gap.name)
        assert ran(late.accept_gap, gap.name) == done, "it has one effect"
        assert ran(made.instance(2)[0].accept_gap, gap.name) == done, "whoever asks"
        made.lost += gap.count
        with pytest.raises(Refused) as caught:
            ran(late.accept_gap, "another")
        assert caught.value.rule == GAP_NONE
        made.drain(0)
        made.drain(2)
        assert made.ranges()[0] == ("topic-1/0", 0, 2)
        made.check()


def test_what_went_before_it_was_bound_is_accepted_too() -> None:
    with world(1) as made:
        made.send(0, 2)
        made.drain()
        made.send(0, 5)
        made.topic.forget(4)
        with pytest.raises(Refused) as caught:
            made.drain()
        assert caught.value.rule == POSITION_RULE
        made.accept(1)
        assert made.lost == 2
        made.drain()
        made.check()


def test_a_gap_before_anything_was_written_tells_nothing_of_other_partitions() -> None:
    """They are read from their first messages, as one that was added to the topic."""
    with world(1) as made:
        made.send(0, 1)
        made.step(0)
        made.topic.forget(1)
        made.accept(1)
        assert made.lost == 1
        made.send(2, 1)
        made.release(1)
        made.race(0, 1)
        made.drain(2)
        made.check()
        assert made.ranges() == [("topic-1/0", 0, 1), ("topic-1/2", 0, 1)]


def test_a_range_that_grew_meanwhile_is_not_accepted_by_its_former_name() -> None:
    with world(1) as made:
        made.send(0, 1)
        made.drain()
        made.send(0, 5)
        made.topic.forget(3)
        gap = ran(made.instance(0)[0].gap)
        assert gap is not None
        made.topic.forget(4)
        with pytest.raises(Refused, match="is another one now") as caught:
            ran(made.instance(0)[0].accept_gap, gap.name)
        assert caught.value.rule == GAP_CHANGED
        assert made.ranges() == [("topic-1/0", 0, 1)]


def test_who_has_the_bytes_comes_before_a_gap_or_after_it() -> None:
    """A binding is written or cancelled, never both, whoever commits first."""
    for first in ("bytes", "gap"):
        with world(1) as made:
            made.send(0, 3)
            made.step(0)
            made.topic.forget(3)
            if first == "bytes":
                made.accept(1, other=0)
                assert made.lost == 0, "it was written, so nothing is lost"
            else:
                made.instance(0)[2].before_commit = lambda made=made: made.accept(1)
                made.step(0)
                assert made.lost == 3
            made.drain(0)
            made.drain(1)
            made.check()


def test_bytes_of_a_topic_are_not_copied_and_let_go_once_they_are_written() -> None:
    with world(3) as made:
        made.send(0, 2)
        made.drain()
        assert not _kept(made)
        assert not any(_held(made, name) for name in _hashes(made))
    with world(3, keep_raw=True) as made:
        made.send(0, 2)
        made.drain()
        assert len(_kept(made)) == 1


def test_bytes_of_a_compacted_topic_are_decoded_as_they_were_bound() -> None:
    with world(1) as made:
        made.topic.is_compacted = True
        made.send(0, 2)
        made.step(0)
        made.topic.compact(0)
        made.drain(1)
        assert (
            sum(rows_in(raws) for each, (_, raws) in made.house.chains(made.chain).items() if each != made.chain) == 2
        )


def test_a_source_that_forgot_what_was_bound_stops_who_has_not_read_it() -> None:
    with world(1) as made:
        made.send(0, 3)
        made.step(0)
        made.topic.forget(2)
        with pytest.raises(Refused, match="messages 0 to 1 of partition 0 were bound") as caught:
            made.drain(1)
        assert caught.value.rule == FORGOT
        made.drain(0)
        assert made.instance(0)[0].counts.written == 1, "the instance that has read it still writes it"
        made.drain(1)
        made.check()


def test_a_source_that_rewrote_what_was_bound_is_told_from_one_that_forgot() -> None:
    for spoil in (lambda topic: topic.compact(1), lambda topic: topic.lose(2)):
        with world(1) as made:
            made.send(0, 3)
            made.step(0)
            spoil(made.topic)
            with pytest.raises(Refused) as caught:
                made.drain(1)
            assert caught.value.rule == REWROTE


def test_who_finds_the_bytes_gone_goes_on_where_another_one_has_written_them() -> None:
    with world(1) as made:
        made.send(0, 3)
        made.step(0)
        other = made.instance(1)[0]
        again = other._addresses.again

        async def late(*args: Any) -> Any:
            await trio.to_thread.run_sync(lambda: None)
            await made.instance(0)[0].step()
            made.topic.forget(3)
            return await again(*args)

        other._addresses.again = late  # type: ignore[method-assign]
        made.drain(1)
        assert (other.counts.written, made.instance(0)[0].counts.written) == (0, 1)


def test_a_topic_that_was_made_again_is_another_part_and_never_a_smaller_offset() -> None:
    with world(1) as made:
        made.send(0, 2)
        made.drain()
        made.topic.remake()
        made.send(0, 4)
        with pytest.raises(Refused, match="deleted and made again"):
            made.drain()
        assert made.ranges() == [("topic-1/0", 0, 2)]


def test_the_partition_decides_the_shard_of_its_rows_whoever_takes_it() -> None:
    with world(3, by_part=True) as made:
        for partition in range(PARTITIONS):
            made.send(partition, partition + 1)
        for number in (0, 1, 2, 0):
            made.step(number)
            made.step(number)
        made.drain(1)
        found, shards = made.house.chains(made.chain), made.instance(1)[0].layout.shards
        expected = [0, 0, 0]
        for partition in range(PARTITIONS):
            expected[shard_of_part(f"topic-1/{partition}", 3)] += partition + 1
        assert [rows_in(found[each][1]) for each in shards] == expected
        made.check()


def _not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes that were read again are taken as they are."""
    monkeypatch.setattr("odfd.reclock.instance._is_bound", lambda *_: True)


def _rewritten(made: World) -> None:
    made.send(0, 3)
    made.step(0)
    made.topic.compact(1)
    made.drain(1)


def _bound_twice(made: World) -> None:
    made.send(0, 2)
    made.race(0, 1)
    made.drain(2)


def _resent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A binding that came second is proposed again at the next time."""
    real = Instance._proposed

    def twice(self: Instance, binding: Any, state: Any, time: Instant) -> Outcome:
        outcome = real(self, binding, state, time)
        if isinstance(outcome, Committed):
            return outcome
        self._place.read([self._chain])
        next_time = from_millis(self._place.chains.upper(self._chain))
        return real(self, binding, load_state(self._place.chains.chain(self._chain)), next_time)

    monkeypatch.setattr(Instance, "_proposed", twice)


def _by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The topic's name, not its id, is the part."""
    monkeypatch.setattr(ModelTopic, "id", property(lambda _: "cities"))


def _made_again(made: World) -> None:
    made.send(0, 2)
    made.drain()
    made.topic.remake()
    made.send(0, 4)
    made.drain()


def _not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compacted topic is taken for one that gives the same bytes again."""
    real = topics.ModelPositions.offered

    async def offered(self: Any, *args: Any) -> Any:
        offer = await real(self, *args)
        return None if offer is None else offer._replace(kept=False)

    monkeypatch.setattr(topics.ModelPositions, "offered", offered)


def _compacted(made: World) -> None:
    made.topic.is_compacted = True
    _rewritten(made)


MUTANTS: list[tuple[Callable[[pytest.MonkeyPatch], None], Callable[[World], None], type[BaseException], str]] = [
    (_not_compared, _rewritten, NotFound, "no object"),  # bytes are read by the hash that was bound
    (_resent, _bound_twice, Remote, "do not follow what was bound before"),
    (_by_name, _made_again, AssertionError, "each address gives its row"),
    (_not_kept, _compacted, Refused, "other bytes than were bound"),
]


@pytest.mark.parametrize(("mutate", "play", "kind", "said"), MUTANTS, ids=[each[0].__name__ for each in MUTANTS])
def test_each_rule_that_is_broken_is_caught(
    mutate: Callable[[pytest.MonkeyPatch], None], play: Callable[[World], None], kind: type[BaseException], said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    mutate(monkeypatch)

    def played() -> None:
        with world(1) as made:
            play(made)
            made.check()

    with pytest.raises(kind, match=said):
        played()


def _hashes(made: World) -> list[Any]:
    place, _ = made.house.place()
    reading = place.read([made.chain])
    time = reading.views[made.chain].next_time(0)
    assert time is not None
    bound = reading.views[made.chain].next_time(time + 1)
    assert bound is not None
    found = [
        each.object for each in binding_of(place.objects, reading.views[made.chain].transaction(bound)).capture.files
    ]
    place.close()
    return found


def _held(made: World, name: Any) -> bool:
    return made.instance(0)[1].objects.has(name)


def _kept(made: World) -> list[Path]:
    folder = made.house.folder / "house" / made.chain.multibase / "data"
    return [each for each in folder.iterdir() if b'"city"' in each.read_bytes()]

"""Several instances ingest one source into the shards of one collection: whatever they do, each byte is as from one.

They take steps in any order, come before each other at any commit, die at any write, and their clocks jump. The chains
are compared with those that one instance alone writes, without a death, from the bindings that came out.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from chain.data.partition import shard_of_part
from chain.errors import Conflict, Invalid, Refused, Remote
from chain.instant import SECOND, Instant, to_millis
from chain.model.events import SetInfo
from chain.model.source import FetchUrl
from chain.state import load_state
from chain.store.shards import CommitPoint, Proposal
from odfd.ingest.capture_bindings import FOUNDING
from odfd.reclock.creation import ShardsWanted, check_declared, check_division
from odfd.reclock.standby import LEAST
from odfd.trust.signing.owner_commit import author_blocks
from worlds.instances import START, House, ThreeInstances, declared, rows_in
from worlds.seeds import examples

CITIES = ("Graz", "Linz", "Wels", "Steyr", "Enns", "Melk", "Krems")
_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
ACTIONS = some.one_of(
    some.tuples(some.just("add"), some.sampled_from(CITIES), some.sampled_from(CITIES)),
    some.tuples(some.sampled_from(["step", "turn"]), some.integers(0, 2), some.none()),
    some.tuples(some.just("race"), some.integers(0, 2), some.integers(0, 2)),
    some.tuples(some.just("die"), some.integers(0, 2), some.tuples(some.integers(1, 9), some.booleans())),
    some.tuples(some.just("jump"), some.integers(0, 2), some.integers(-7200, 7200)),
)


@contextlib.contextmanager
def world(shards: int, *, ledger: bool = False, by_part: bool = False) -> Iterator[ThreeInstances]:
    with tempfile.TemporaryDirectory(dir=_MEMORY) as folder:
        house = House(Path(folder))
        made = ThreeInstances(house, house.begin(shards, ledger=ledger, by_part=by_part))
        yield made
        made.close()


@settings(max_examples=examples(8))
@given(
    shards=some.sampled_from([1, 3]), way=some.sampled_from(["append", "ledger", "part"]),
    actions=some.lists(ACTIONS, max_size=14),
)  # fmt: skip
def test_blocks_are_those_of_one_instance_alone(
    shards: int, way: str, actions: list[tuple[str, object, object]]
) -> None:
    with world(shards, ledger=way == "ledger", by_part=way == "part" and shards > 1) as made:
        made.house.add("Graz")
        for kind, first, second in actions:
            match kind, first, second:
                case "add", str(), str():
                    made.house.add(first, second)
                case "step", int(), _:
                    made.step(first)
                case "turn", int(), _:
                    made.turn(first)
                case "race", int(), int():
                    made.race(first, second)
                case "die", int(), (int(at), bool(after)):
                    made.die(first, at, after=after)
                case "jump", int(), int():
                    made.clocks[first] += second * SECOND
        made.drain(1)
        found = made.house.chains(made.chain)
        assert found == made.house.as_one_alone(made.chain)
        assert found[made.chain][0].head.size - FOUNDING == made.house.files, "each file is bound once"


def test_a_binding_that_came_second_is_forgotten_and_its_bytes_are_taken_once() -> None:
    with world(3) as made:
        made.house.add(*CITIES)
        made.race(0, 1)
        assert (made.instance(0)[0].counts.forgotten, made.instance(1)[0].counts.bound) == (1, 1)
        made.drain(0)
        made.drain(1)
        assert made.instance(0)[0].counts.written == 1
        assert len(made.house.chains(made.chain)[made.chain][1]) == FOUNDING + 1


def test_a_transaction_that_another_one_wrote_is_found_again() -> None:
    with world(3) as made:
        made.house.add(*CITIES)
        made.step(0)
        made.race(0, 1)
        counts = made.instance(0)[0].counts, made.instance(1)[0].counts
        assert [(each.written, each.repeated) for each in counts] == [(0, 1), (1, 0)]


def came_second(made: ThreeInstances, number: int, other: int) -> None:
    """One turn, which proposes what another instance has committed just before."""
    made.house.add("Graz")
    _, _, files = made.instance(number)
    files.before_commit = lambda: made.step(other)
    assert made.turn(number) == 0.0


def test_who_came_second_does_nothing_while_another_one_goes_on_and_takes_over_when_it_dies() -> None:
    with world(3) as made:
        came_second(made, 0, 1)
        instance, _, files = made.instance(0)
        before, fetched = files.dies_at, instance.counts.forgotten
        assert fetched == 1
        for _ in range(3):
            made.house.add(*CITIES)
            assert made.turn(0) == LEAST * 1.5
            made.step(1)
        assert files.dies_at == before, "it wrote something"
        made.die(1, 3, after=False)
        assert made.alive[1] is None
        assert made.turn(0) == LEAST * 1.5
        assert made.turn(0) == 0.0, "nothing moved during a pause"
        assert instance.counts.first == 1
        made.drain(0)
        assert instance.counts.second == 1
        found = made.house.chains(made.chain)
        assert found == made.house.as_one_alone(made.chain)
        assert found[made.chain][0].head.size - FOUNDING == made.house.files


def test_two_that_stand_by_at_once_do_not_wait_for_each_other() -> None:
    with world(1) as made:
        came_second(made, 0, 2)
        made.drain(2)
        came_second(made, 1, 2)
        made.die(2, 1, after=False)
        assert made.alive[2] is None
        assert [made.turn(number) for number in (0, 1)] == [LEAST * 1.5] * 2
        assert made.turn(0) == 0.0, "the first that looks again acts"
        assert made.instance(0)[0].counts.written == 1
        assert made.turn(1) == LEAST * 1.5, "and the other one lets it go on"
        made.die(0, 1, after=False)
        made.house.add("Graz")
        made.drain(1)
        assert made.house.chains(made.chain) == made.house.as_one_alone(made.chain)


def test_a_shard_without_rows_of_a_transaction_moves_its_frontier_with_the_others() -> None:
    with world(3) as made:
        made.house.add("Graz")
        made.drain()
        made.house.add("Graz")
        made.drain()
        found = made.house.chains(made.chain)
        uppers = {shard.upper for each, (shard, _) in found.items() if each != made.chain}
        assert uppers == {found[made.chain][0].upper}


def test_a_clock_that_runs_back_binds_at_the_next_free_time_and_one_a_day_behind_binds_nothing() -> None:
    with world(1) as made:
        made.clocks = [int(START) + 3600 * SECOND, int(START), int(START) - 2 * 86400 * SECOND]
        uppers = []
        for number in (0, 1):
            made.house.add("Graz")
            made.drain(number)
            uppers.append(made.house.chains(made.chain)[made.chain][0].upper)
        assert uppers[0] > to_millis(START) + 3_600_000
        upper = uppers[0] + 1
        assert uppers[1] == upper
        made.house.add("Graz")
        with pytest.raises(Refused, match="one of them is wrong"):
            made.drain(2)
        assert made.house.chains(made.chain)[made.chain][0].upper == upper


def test_another_transaction_of_a_bound_time_stops_the_ingest_with_both_named() -> None:
    """As by an instance of a version that decodes otherwise."""
    with world(1) as made:
        made.house.add("Graz")
        instance, _, files = made.instance(0)
        made.step(0)
        (shard,) = instance.layout.shards
        time = made.house.chains(made.chain)[made.chain][0].upper - 1

        def foreign() -> None:
            other, _ = made.house.place()
            other.read([shard, made.chain])
            state = load_state(other.chains.chain(shard))
            blocks = author_blocks(state, [SetInfo(description="decoded otherwise")], Instant(time * 1_000_000))
            CommitPoint(other).append([Proposal(dataset=shard, blocks=blocks, new_upper=time + 1)])
            other.close()

        files.before_commit = foreign
        with pytest.raises(Conflict, match="this instance computed"):
            made.step(0)


def test_captured_bytes_that_were_changed_are_never_decoded() -> None:
    with world(1) as made:
        made.house.add("Graz")
        made.step(0)
        folder = made.house.folder / "house" / made.chain.multibase / "data"
        (captured,) = [each for each in folder.iterdir() if b"event_time,city" in each.read_bytes()]
        captured.write_bytes(captured.read_bytes().replace(b"Graz", b"Gras"))
        with pytest.raises(Remote, match="has other bytes"):
            made.step(1)


def test_a_chain_that_binds_nothing_is_refused_by_name() -> None:
    with world(1) as made:
        (shard,) = made.instance(0)[0].layout.shards
        with pytest.raises(Invalid, match="is no reclocking chain"):
            made.house.instance(shard, lambda: START)


def test_only_the_source_that_the_node_itself_declares_is_read() -> None:
    """Whoever writes to the repository could name files of this machine, or a command, in the shards' declaration."""
    with world(1) as made:
        made.house.add("Graz")
        made.house.declared = declared(made.house.folder, ledger=False)
        with pytest.raises(Refused, match="declare another source than this node's dataset"):
            made.step(0)


def test_the_file_decides_the_shard_of_its_rows_whoever_takes_it() -> None:
    with world(3, by_part=True) as made:
        for _ in range(5):
            made.house.add(*CITIES)
        for number in (0, 1, 2, 0):
            made.step(number)
            made.step(number)
        made.drain(1)
        found = made.house.chains(made.chain)
        shards = made.instance(1)[0].layout.shards
        rows = [rows_in(found[each][1]) for each in shards]
        expected = [0, 0, 0]
        for file in range(1, 6):
            expected[shard_of_part(f"f{file:04}.csv", 3)] += len(CITIES)
        assert rows == expected
        assert sum(map(bool, rows)) > 1


def test_what_has_no_parts_or_is_merged_by_key_is_not_sharded_by_part(tmp_path: Path) -> None:
    by_part = ShardsWanted(3, (), by_part=True)
    glob = declared(tmp_path, ledger=False)
    check_declared([glob], by_part)
    url = msgspec.structs.replace(glob, fetch=FetchUrl(url="https://example.org/a.csv"))
    with pytest.raises(Refused, match="a source of kind Url has no parts"):
        check_declared([url], by_part)
    with pytest.raises(Refused, match="rows of one key would be in several"):
        check_declared([declared(tmp_path, ledger=True)], by_part)
    for wrong in (ShardsWanted(1, (), by_part=True), ShardsWanted(3, ("city",), by_part=True)):
        with pytest.raises(Invalid, match="and by part"):
            check_division(wrong)

"""Clients push to three instances of one collection, repeat what got no answer, and instances die and race.

Each push is in the shards once, whoever it was told to and how often, and each answer to it is the same. The chains are
those that one instance alone writes from the bindings that came out.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from chain.errors import Invalid, Refused, Remote
from chain.instant import SECOND, Instant, from_millis
from chain.state import load_state
from chain.store.shards import Committed, Outcome
from odfd.ingest.capture_bindings import FOUNDING
from odfd.reclock.creation import ShardsWanted, check_declared
from odfd.reclock.instance import Instance
from odfd.reclock.push_once import BoundReceipt, PushedFiles, push
from worlds.instances import Died, House, ThreeInstances, declared, pushed, rows_in
from worlds.one_thread import ran
from worlds.seeds import examples

_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
ACTIONS = some.one_of(
    some.tuples(some.just("push"), some.integers(0, 2), some.integers(0, 3)),
    some.tuples(some.just("race"), some.integers(0, 2), some.tuples(some.integers(0, 3), some.integers(0, 3))),
    some.tuples(some.just("die"), some.integers(0, 2), some.tuples(some.integers(0, 3), some.integers(1, 12))),
    some.tuples(some.just("jump"), some.integers(0, 2), some.integers(-7200, 7200)),
)


class World(ThreeInstances):
    """Three instances, and four pushes whose clients may repeat them."""

    def __init__(self, folder: Path, shards: int, *, ledger: bool = False) -> None:
        house = House(folder)
        house.takes_pushes = True
        super().__init__(house, house.begin(shards, ledger=ledger))
        self.receipts: dict[int, BoundReceipt] = {}
        self.sent: set[int] = set()

    def file(self, number: int) -> Path:
        path = self.house.folder / f"push{number}.csv"
        rows = "".join(f"2024-01-01T00:00:00Z,City {number} {each},{each}\n" for each in range(3))
        path.write_text(f"event_time,city,population\n{rows}")
        return path

    def push(self, number: int, which: int, push_id: str | None = "") -> BoundReceipt:
        self.sent.add(which)
        wanted = PushedFiles(files=(self.file(which),), id=f"push-{which}" if push_id == "" else push_id)
        receipt = ran(push, self.instance(number)[0], wanted)
        told = msgspec.structs.replace(receipt, is_repeated=True)
        assert self.receipts.setdefault(which, told) == told, "every answer is the same"
        assert receipt.records == 3
        return receipt

    def race_pushes(self, number: int, first: int, second: int) -> None:
        """A push, and before its commit one to the next instance."""
        self.instance(number)[2].before_commit = lambda: self.push((number + 1) % 3, second)
        self.push(number, first)
        self.instance(number)[2].before_commit = None

    def die_in_push(self, number: int, which: int, at: int) -> None:
        _, place, files = self.instance(number)
        files.dies_at, files.after = at, at % 2 == 0
        try:
            self.push(number, which)
            files.dies_at = 0
        except Died:
            place.close()
            self.alive[number] = None

    def check(self) -> None:
        found = self.house.chains(self.chain)
        assert len(found[self.chain][1]) - FOUNDING == len(self.sent), "each push is bound once"
        assert sum(rows_in(raws) for each, (_, raws) in found.items() if each != self.chain) == 3 * len(self.sent)
        assert found == self.house.as_one_alone(self.chain)


@contextlib.contextmanager
def world(shards: int, *, ledger: bool = False) -> Iterator[World]:
    with tempfile.TemporaryDirectory(dir=_MEMORY) as folder:
        made = World(Path(folder), shards, ledger=ledger)
        yield made
        made.close()


@settings(max_examples=examples(8))
@given(shards=some.sampled_from([1, 3]), ledger=some.booleans(), actions=some.lists(ACTIONS, max_size=10))
def test_each_push_is_taken_once_and_answered_alike(
    shards: int, ledger: bool, actions: list[tuple[str, int, Any]]
) -> None:
    with world(shards, ledger=ledger) as made:
        for kind, number, more in actions:
            match kind:
                case "push":
                    made.push(number, more)
                case "race":
                    made.race_pushes(number, *more)
                case "die":
                    made.die_in_push(number, *more)
                case "jump":
                    made.clocks[number] += more * SECOND
        for which in sorted(made.sent):
            made.push(which % 3, which)
        made.check()


def test_two_instances_that_are_told_one_push_at_once_bind_it_once() -> None:
    with world(3) as made:
        made.race_pushes(0, 1, 1)
        made.check()
        counts = made.instance(0)[0].counts, made.instance(1)[0].counts
        assert [(each.bound, each.forgotten) for each in counts] == [(0, 1), (1, 0)]


def test_without_an_id_the_content_is_one_unless_repeating_it_has_a_meaning() -> None:
    with world(1) as made:
        first = made.push(0, 1, push_id=None)
        assert not first.is_repeated
        assert made.push(1, 1, push_id=None).is_repeated
        made.check()


def test_an_id_that_was_used_for_other_files_is_refused() -> None:
    with world(1) as made:
        made.push(0, 1, push_id="one")
        with pytest.raises(Refused, match="the id 'one' was used at 2026-01-01T"):
            made.push(1, 2, push_id="one")
        with pytest.raises(Refused, match="an id of 201 characters"):
            made.push(1, 2, push_id="x" * 201)


def test_what_cannot_be_decoded_is_refused_before_it_is_bound_and_stops_nobody() -> None:
    with world(1) as made:
        bad = made.house.folder / "bad.csv"
        bad.write_text("event_time,city,population\n2024-01-01T00:00:00Z,Graz,many\n")
        with pytest.raises(Invalid):
            ran(push, made.instance(0)[0], PushedFiles(files=(bad,), id="bad"))
        made.push(1, 1)
        made.check()


def test_a_push_bound_twice_is_refused_by_whoever_would_write_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutant: a binding that came second is proposed again, without a look at the chain."""
    real = Instance._proposed

    def twice(self: Instance, binding: Any, state: Any, time: Instant) -> Outcome:
        outcome = real(self, binding, state, time)
        if isinstance(outcome, Committed):
            return outcome
        self._place.read([self._chain])
        next_time = from_millis(self._place.chains.upper(self._chain))
        return real(self, binding, load_state(self._place.chains.chain(self._chain)), next_time)

    monkeypatch.setattr(Instance, "_proposed", twice)
    with world(1) as made:
        made.race_pushes(0, 1, 1)
        with pytest.raises(Remote, match="binds the push 'push-1' twice"):
            made.drain(2)


def test_what_has_no_parts_is_not_sharded_by_part_and_sources_are_of_one_kind(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="pushes have no parts"):
        check_declared([pushed(ledger=False)], ShardsWanted(3, (), by_part=True))
    with pytest.raises(Refused, match="one polling source, or push sources"):
        check_declared([pushed(ledger=False), declared(tmp_path, ledger=False)], ShardsWanted())
    with pytest.raises(Refused, match="one polling source, or push sources"):
        check_declared([], ShardsWanted())

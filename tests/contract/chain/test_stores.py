"""One body for every store: what the ports promise, and a model that random programs are compared with."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chain.codec.blocks import decode_block
from chain.errors import Conflict, Invalid, NotFound, Refused
from chain.multihash import ARROW0_SHA3_256, SHA2_256, SHA3_256, Multihash
from chain.rules.check import seal
from chain.store import former_epochs
from chain.store.base import PAGE_BLOCKS, Append, FormerEpochs, Head, Rewrite
from chain.store.former_epochs import SET_ASIDE
from worlds import store_worlds as worlds
from worlds.depth import share


@pytest.fixture(params=["memory", "sqlite"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[worlds.World]:
    yield from getattr(worlds, request.param)(tmp_path)


def test_a_chain_that_is_not_there(world: Any) -> None:
    chain = world.chains.chain(worlds.dataset(1))
    assert chain.head() is None
    assert list(chain.raw_blocks(0, 10)) == []
    assert chain.last_of(["Seed"]) is None
    with pytest.raises(NotFound):
        chain.block_at(0)
    with pytest.raises(NotFound):
        chain.block_by_hash(worlds.MISSING)
    assert list(world.chains.datasets()) == []


def test_what_is_committed_is_read(world: Any) -> None:
    owner = worlds.dataset(1)
    made = worlds.blocks(owner, 10)
    world.chains.commit([Append(dataset=owner, expected=None, blocks=made[:4])])
    world.chains.commit([Append(dataset=owner, expected=worlds.head(made[3]), blocks=made[4:])])
    chain = world.chains.chain(owner)
    assert chain.head() == worlds.head(made[-1])
    assert [chain.block_at(n) for n in range(10)] == made
    assert [chain.block_by_hash(one.hash) for one in made] == made
    assert list(chain.raw_blocks(3, 7)) == [one.raw for one in made[3:7]]
    assert list(chain.raw_blocks(-5, 99)) == [one.raw for one in made]
    assert list(world.chains.datasets()) == [owner]
    assert [one.raw for one in chain.stored_blocks(2)] == [one.raw for one in made[2:]]
    assert chain.snapshot().head == Head(made[-1].hash, 9)


def test_the_newest_of_a_kind(world: Any) -> None:
    owner = worlds.dataset(1)
    made = worlds.blocks(owner, 10)
    world.chains.commit([Append(dataset=owner, expected=None, blocks=made)])
    last_of = world.chains.chain(owner).last_of
    assert last_of(["SetInfo"]) == made[9]
    assert last_of(["SetInfo"], before=9) == made[6]
    assert last_of(["AddData", "SetInfo"], before=6) == made[5]
    assert last_of(["Seed"], before=1) == made[0]
    assert last_of(["Seed"], before=0) is None
    assert last_of(["SetVocab"]) is None
    assert last_of([]) is None


def test_the_head_is_compared(world: Any) -> None:
    owner = worlds.dataset(1)
    made, others = worlds.blocks(owner, 3), worlds.blocks(owner, 3, note="other")
    world.chains.commit([Append(dataset=owner, expected=None, blocks=made[:2])])
    for expected, following in [(None, made), (worlds.head(made[0]), made[1:]), (worlds.head(others[1]), others[2:])]:
        with pytest.raises(Conflict) as caught:
            world.chains.commit([Append(dataset=owner, expected=expected, blocks=following)])
        assert caught.value.hint
    assert world.chains.chain(owner).head() == worlds.head(made[1])


def test_blocks_must_follow(world: Any) -> None:
    owner = worlds.dataset(1)
    made, others = worlds.blocks(owner, 4), worlds.blocks(owner, 4, note="other")
    for expected, wrong in [
        (None, made[1:]),
        (None, [made[0], made[2]]),
        (worlds.head(made[1]), others[2:]),
        (None, []),
    ]:
        with pytest.raises(Invalid):
            world.chains.commit([Append(dataset=owner, expected=expected, blocks=wrong)])
    assert world.chains.chain(owner).head() is None


def test_objects_come_first(world: Any) -> None:
    owner = worlds.dataset(1)
    made = worlds.blocks(owner, 1)
    with pytest.raises(Invalid, match="not in the store"):
        world.chains.commit([Append(dataset=owner, expected=None, blocks=made, objects=[worlds.MISSING])])
    name = world.objects.add_bytes(b"here")
    world.chains.commit([Append(dataset=owner, expected=None, blocks=made, objects=[name])])


def test_several_chains_are_one_commit(world: Any) -> None:
    one, other = worlds.dataset(1), worlds.dataset(2)
    ours, theirs = worlds.blocks(one, 2), worlds.blocks(other, 2)
    world.chains.commit([Append(dataset=one, expected=None, blocks=ours[:1])])
    with pytest.raises(Conflict):
        world.chains.commit(
            [
                Append(dataset=other, expected=None, blocks=theirs),
                Append(dataset=one, expected=None, blocks=ours),
            ]
        )
    assert world.chains.chain(other).head() is None
    with pytest.raises(Invalid, match="twice"):
        world.chains.commit([Append(dataset=other, expected=None, blocks=theirs)] * 2)
    world.chains.commit(
        [
            Append(dataset=other, expected=None, blocks=theirs),
            Append(dataset=one, expected=worlds.head(ours[0]), blocks=ours[1:]),
        ]
    )
    assert world.chains.chain(one).head() == worlds.head(ours[1])
    assert world.chains.chain(other).head() == worlds.head(theirs[1])


def test_rows_of_others_are_part_of_the_commit(world: Any) -> None:
    owner = worlds.dataset(1)
    made = worlds.blocks(owner, 2)
    seen: list[list[tuple[int]]] = []

    def write(connection: sqlite3.Connection) -> None:
        connection.execute("CREATE TABLE IF NOT EXISTS notes (n INTEGER)")
        connection.execute("INSERT INTO notes VALUES (1)")

    def read(connection: sqlite3.Connection) -> None:
        seen.append(connection.execute("SELECT n FROM notes").fetchall())

    def fail(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO notes VALUES (2)")
        raise ZeroDivisionError

    world.chains.commit([Append(dataset=owner, expected=None, blocks=made[:1])], write)
    with pytest.raises(ZeroDivisionError):
        world.chains.commit([Append(dataset=owner, expected=worlds.head(made[0]), blocks=made[1:])], fail)
    assert world.chains.chain(owner).head() == worlds.head(made[0])
    world.chains.commit([], read)
    assert seen == [[(1,)]]


def test_a_dropped_chain_is_gone_and_may_begin_anew(world: Any) -> None:
    owner = worlds.dataset(1)
    made, anew = worlds.blocks(owner, 5), worlds.blocks(owner, 2, note="anew")
    world.chains.commit([Append(dataset=owner, expected=None, blocks=made)])
    world.chains.drop(owner)
    chain = world.chains.chain(owner)
    assert chain.head() is None
    assert chain.last_of(["Seed"]) is None
    with pytest.raises(NotFound):
        chain.block_by_hash(made[1].hash)
    world.chains.commit([Append(dataset=owner, expected=None, blocks=anew)])
    assert chain.head() == worlds.head(anew[1])


@pytest.mark.parametrize("size", [0, 1, 64 << 10, (64 << 10) + 1, 300_000])
def test_objects_are_what_was_put_in(world: Any, size: int) -> None:
    data = bytes(i % 251 for i in range(size))
    staged = world.objects.stage()
    staged.write_bytes(data)
    name = world.objects.add_file(staged)
    assert name == Multihash.sha3_256(data)
    assert not staged.exists()
    assert world.objects.add_bytes(data) == name
    assert world.objects.has(name)
    assert world.objects.size(name) == size
    assert world.objects.read(name) == data
    assert world.objects.read(name, 3, 10) == data[3:13]
    assert world.objects.read(name, size + 5) == b""
    assert world.objects.path(name).read_bytes() == data
    world.objects.remove(name)
    world.objects.remove(name)
    assert not world.objects.has(name)
    for read in (world.objects.read, world.objects.size, world.objects.path):
        with pytest.raises(NotFound):
            read(name)


def test_what_is_missing_is_told_in_its_order(world: Any) -> None:
    """Whatever is in the database, waits for it, or lies in a file; and whatever a name begins with."""
    kept, waiting, large = (bytes([number]) * size for number, size in enumerate([5, 7, 200_000]))
    names = [world.objects.add_bytes(kept)]
    made = worlds.blocks(worlds.dataset(1), 1)
    world.chains.commit([Append(dataset=worlds.dataset(1), expected=None, blocks=made, objects=names)])
    names += [world.objects.add_bytes(data) for data in (waiting, large)]
    codes = (SHA3_256, SHA2_256, ARROW0_SHA3_256)
    absent = [Multihash.from_digest(codes[number % 3], bytes([number]) * 32) for number in range(200)]
    asked = [*absent[:150], *names, *absent[150:]]
    assert world.objects.missing(asked) == absent
    assert world.objects.missing(name for name in asked) == absent
    assert world.objects.missing([]) == []
    assert world.objects.missing(names) == []


PROGRAMS = st.lists(
    st.tuples(st.sampled_from(["append", "stale", "pair", "drop"]), st.integers(0, 2), st.integers(1, 4)), max_size=25
)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@settings(max_examples=share(60))
@given(program=PROGRAMS)
def test_any_program_does_what_a_list_of_lists_does(kind: str, program: list[Any]) -> None:
    model: dict[int, list[Any]] = {0: [], 1: [], 2: []}
    with tempfile.TemporaryDirectory() as folder:
        for world in getattr(worlds, kind)(Path(folder)):
            for number, (action, which, count) in enumerate(program):
                _perform(world, model, action, which, count, number)
            _compare(world, model)


def _perform(world: Any, model: dict[int, list[Any]], action: str, which: int, count: int, salt: int) -> None:
    def following(chain: int) -> Append:
        owner, kept = worlds.dataset(chain), model[chain]
        last = kept[-1] if kept else None
        made = worlds.blocks(owner, count, last, note="x" * (salt % 7))
        return Append(dataset=owner, expected=worlds.head(last), blocks=made)

    if action == "drop":
        world.chains.drop(worlds.dataset(which))
        model[which] = []
    elif action == "stale":
        if model[which]:
            made = worlds.blocks(worlds.dataset(which), count, note="stale")
            with pytest.raises(Conflict):
                world.chains.commit([Append(dataset=worlds.dataset(which), expected=None, blocks=made)])
    else:
        chosen = [which] if action == "append" else [which, (which + 1) % 3]
        appends = [following(chain) for chain in chosen]
        world.chains.commit(appends)
        for chain, append in zip(chosen, appends, strict=True):
            model[chain] = [*model[chain], *append.blocks]


def _compare(world: Any, model: dict[int, list[Any]]) -> None:
    for number, kept in model.items():
        chain = world.chains.chain(worlds.dataset(number))
        assert chain.head() == worlds.head(kept[-1] if kept else None)
        assert list(map(decode_block, chain.raw_blocks(0, 1000))) == kept
        infos = [one for one in kept if type(one.event).__name__ == "SetInfo"]
        assert chain.last_of(["SetInfo"]) == (infos[-1] if infos else None)
    assert set(world.chains.datasets()) == {worlds.dataset(n) for n, kept in model.items() if kept}


def test_pages_hold_the_same_blocks(world: Any) -> None:
    owner = worlds.dataset(1)
    made = worlds.blocks(owner, 11)
    world.chains.commit([Append(dataset=owner, expected=None, blocks=made)])
    chain = world.chains.chain(owner)
    for start, stop in ((0, None), (3, None), (0, 7), (4, 4), (20, None)):
        found = []
        for page in chain.stored_pages(start, stop):
            assert len(page.names) == 34 * len(page.raws)
            assert len(page.raws) <= PAGE_BLOCKS
            found += [(page.start + row, page.name(row), raw) for row, raw in enumerate(page.raws)]
        assert found == [(one.sequence_number, one.hash, one.raw) for one in made[start:stop]]


def test_a_rewrite_puts_another_history_in_place(world: Any) -> None:
    owner, other = worlds.dataset(1), worlds.dataset(2)
    made, beside = worlds.blocks(owner, 8), worlds.blocks(other, 3)
    world.chains.commit([Append(dataset=owner, expected=None, blocks=made)])
    world.chains.commit([Append(dataset=other, expected=None, blocks=beside)])
    after = worlds.blocks(owner, 2, after=made[4], note="again")
    head = world.chains.rewrite(Rewrite(dataset=owner, expected=worlds.head(made[-1]), keep=5, blocks=iter(after)))
    chain = world.chains.chain(owner)
    assert head == chain.head() == worlds.head(after[-1])
    assert [chain.block_at(n) for n in range(7)] == [*made[:5], *after]
    assert chain.last_of(["AddData", "SetInfo"]) == after[-1]
    with pytest.raises(NotFound):
        chain.block_by_hash(made[-1].hash)
    assert list(world.chains.chain(other).raw_blocks(0, 9)) == [one.raw for one in beside]


def test_what_a_rewrite_gives_up_may_be_kept_apart(world: Any) -> None:
    """Of so many epochs, the newest; nothing of it is in the chain, and all goes with the dataset."""
    chains = world.chains
    if not hasattr(chains, "former"):
        pytest.skip("chains in memory keep nothing apart")
    owner, other = worlds.dataset(1), worlds.dataset(2)
    made, beside = worlds.blocks(owner, 8), worlds.blocks(other, 3)
    chains.commit([Append(dataset=owner, expected=None, blocks=made)])
    chains.commit([Append(dataset=other, expected=None, blocks=beside)])
    now = made
    for epoch in range(4):
        after = worlds.blocks(owner, 2, after=now[4], note=f"again {epoch}")
        apart = FormerEpochs(epoch, 2)
        rewrite = Rewrite(dataset=owner, expected=worlds.head(now[-1]), keep=5, blocks=iter(after), apart=apart)
        chains.rewrite(rewrite)
        kept = chains.former(owner, epoch)
        assert (kept.first(), kept.head()) == (5, worlds.head(now[-1]))
        assert list(kept.raw_blocks(5, 9)) == [one.raw for one in now[5:]]
        assert kept.block_by_hash(now[-1].hash) == kept.last_of(["AddData", "SetInfo"]) == now[-1]
        assert chains.raw_of(now[-1].hash) == now[-1].raw
        with pytest.raises(NotFound):
            chains.chain(owner).block_by_hash(now[-1].hash)
        now = [*made[:5], *after]
    assert chains.former_epochs(owner) == [2, 3]
    assert chains.former(owner, 0).head() is None
    assert [chains.chain(owner).block_at(n) for n in range(7)] == now
    assert sorted(chains.datasets()) == sorted([owner, other])
    chains.rewrite(Rewrite(dataset=owner, expected=worlds.head(now[-1]), keep=6, apart=FormerEpochs(4, 0)))
    assert chains.former_epochs(owner) == []
    chains.rewrite(Rewrite(dataset=owner, expected=worlds.head(now[5]), keep=5, apart=FormerEpochs(5)))
    assert chains.former_epochs(owner) == [5]
    chains.drop(owner)
    assert (chains.former_epochs(owner), chains.raw_of(now[5].hash)) == ([], None)


def test_a_chain_that_is_set_aside_is_among_no_chains_until_it_is_taken_back(world: Any) -> None:
    """Whatever its length, and with what was kept of its former epochs."""
    chains = world.chains
    if not hasattr(chains, "former"):
        pytest.skip("chains in memory keep nothing apart")
    owner, other = worlds.dataset(1), worlds.dataset(2)
    made, beside = worlds.blocks(owner, 6), worlds.blocks(other, 2)
    chains.commit([Append(dataset=owner, expected=None, blocks=made)])
    chains.commit([Append(dataset=other, expected=None, blocks=beside)])
    chains.rewrite(Rewrite(dataset=owner, expected=worlds.head(made[-1]), keep=5, apart=FormerEpochs(0)))
    chains.drop(owner, keep=True)
    assert (chains.datasets(), chains.chain(owner).head()) == ([other], None)
    assert set(chains.heads()) == {other}
    kept = chains.former(owner, SET_ASIDE)
    assert (kept.first(), kept.head(), chains.former_epochs(owner)) == (0, worlds.head(made[4]), [0])
    chains.commit([Append(dataset=owner, expected=None, blocks=made[:2])])
    with pytest.raises(Refused, match="an earlier history"):
        chains.drop(owner, keep=True)
    chains.drop(owner)
    with chains._database.write() as connection:
        former_epochs.take_back(connection, owner)
    assert list(chains.chain(owner).raw_blocks(0, 9)) == [one.raw for one in made[:5]]
    assert sorted(chains.datasets()) == sorted([owner, other])
    chains.drop(owner, keep=True)
    with chains._database.write() as connection:
        former_epochs.drop_aside(connection, owner)
    assert (chains.former(owner, SET_ASIDE).head(), chains.datasets()) == (None, [other])


def test_a_rewrite_that_cannot_be_changes_nothing(world: Any) -> None:
    owner = worlds.dataset(1)
    made = worlds.blocks(owner, 6)
    world.chains.commit([Append(dataset=owner, expected=None, blocks=made)])
    here = worlds.head(made[-1])
    stranger = worlds.blocks(owner, 2, after=made[2])
    for error, rewrite in [
        (Conflict, Rewrite(dataset=owner, expected=worlds.head(made[-2]), keep=2)),
        (Invalid, Rewrite(dataset=owner, expected=here, keep=0)),
        (Invalid, Rewrite(dataset=owner, expected=here, keep=7)),
        (Invalid, Rewrite(dataset=owner, expected=here, keep=6)),
        (Invalid, Rewrite(dataset=owner, expected=here, keep=5, blocks=stranger)),
        (Invalid, Rewrite(dataset=owner, expected=here, keep=5, objects=[worlds.MISSING])),
    ]:
        with pytest.raises(error):
            world.chains.rewrite(rewrite)
        assert list(world.chains.chain(owner).raw_blocks(0, 9)) == [one.raw for one in made]


@pytest.mark.parametrize("at", [0, 4, 8])
@pytest.mark.parametrize(
    ("harm", "rule"),
    [
        ({"sequence_number": 77}, "block-follows"),
        ({"prev_block_hash": Multihash.sha3_256(b"another")}, "block-follows"),
        ({"hash": Multihash.sha3_256(b"another")}, "block-"),
    ],
)
def test_a_sealed_block_that_does_not_follow_is_named(world: Any, at: int, harm: dict[str, Any], rule: str) -> None:
    """Many are looked at as columns, and as one by one when something is wrong."""
    owner = worlds.dataset(1)
    made = [seal(block) for block in worlds.blocks(owner, 9)]
    wrong = [*made[:at], msgspec.structs.replace(made[at], **harm), *made[at + 1 :]]
    with pytest.raises(Invalid) as caught:
        world.chains.commit([Append(dataset=owner, expected=None, blocks=wrong)])
    assert caught.value.rule.startswith(rule)
    world.chains.commit([Append(dataset=owner, expected=None, blocks=made[:4])])
    world.chains.commit([Append(dataset=owner, expected=worlds.head(made[3]), blocks=made[4:])])
    assert world.chains.chain(owner).head() == worlds.head(made[-1])

"""What is kept of evidence: never more than there is room for, whatever comes, in which order, and whatever ends it."""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chain import instant
from chain.errors import Environment, Invalid
from chain.multihash import Multihash
from chain.statements import canonical, envelope, statement
from chain.statements.keys import SigningKey
from chain.statements.statement import Actual, HeadStatement
from odfd.trust.evidence.bundle import BUNDLE, BundleManifest, Listed
from odfd.trust.evidence.bundle_store import BundleQuota, BundleStore, StoredBundle, leaving

KEYS = [SigningKey(bytes([number]) * 32) for number in range(3)]
NOW = instant.parse("2026-11-20T08:00:00Z")


def head(key: SigningKey) -> dict[str, canonical.Json]:
    said = HeadStatement(
        dataset=key.dataset_id,
        epoch=0,
        size=2,
        root_hash=bytes(32),
        authority=0,
        issued_at=statement.when(NOW),
        expires_at=statement.when(NOW + 7 * 86400 * instant.SECOND),
        head=Multihash.sha3_256(b"head"),
    )
    value = canonical.decode(envelope.seal(statement.encode(said), key))
    assert isinstance(value, dict)
    return value


HEADS = [head(key) for key in KEYS]


def evidence(whom: int, size: int, number: int) -> tuple[BundleManifest, dict[Multihash, bytes | Path]]:
    """A bundle against the owner of one of three datasets; numbers make them differ."""
    raw = bytes([number % 256]) * size
    name = Multihash.sha3_256(raw)
    manifest = BundleManifest(
        type=BUNDLE,
        head=HEADS[whom],
        sequence_number=1,
        actual=Actual(records=number),
        objects=(Listed(hash=name, size=size),),
    )
    return manifest, {name: raw}


names = st.binary(min_size=32, max_size=32).map(Multihash.sha3_256)
kept = st.builds(
    StoredBundle,
    name=names,
    dataset=st.sampled_from([key.dataset_id for key in KEYS]),
    size=st.integers(1, 60),
    at=st.integers(0, 5),
    refuted=st.booleans(),
)
rooms = st.builds(BundleQuota, total=st.integers(60, 200), one=st.integers(60, 200), count=st.integers(1, 4))


@given(
    bundles=st.lists(kept, max_size=12, unique_by=lambda each: each.name),
    size=st.integers(1, 60),
    whom=st.integers(0, 2),
    room=rooms,
    seed=st.randoms(use_true_random=False),
)
def test_who_leaves(bundles: list[StoredBundle], size: int, whom: int, room: BundleQuota, seed: object) -> None:
    """What is left fits; the untrue go first, then the oldest; the order of looking is no matter."""
    dataset = KEYS[whom].dataset_id
    gone = leaving(bundles, dataset, size, room)
    rest = [each for each in bundles if each.name not in gone]
    alike = [each for each in rest if each.dataset == dataset]
    assert size + sum(each.size for each in rest) <= room.total
    assert size + sum(each.size for each in alike) <= room.one
    assert len(alike) < room.count
    shuffled = bundles[:]
    seed.shuffle(shuffled)  # type: ignore[attr-defined]
    assert leaving(shuffled, dataset, size, room) == gone
    left = {each.name: each for each in bundles}
    for name in gone:
        mine = left[name]
        better = [each for each in alike if each.refuted and not mine.refuted]
        assert mine.dataset != dataset or not better, "one that was found untrue stayed, and a better one went"
        older = [each for each in rest if (not each.refuted, each.at) < (not mine.refuted, mine.at)]
        assert mine.dataset == dataset or not older, "of what went for the sake of all, none before its turn"


class Ended(Exception):
    """In place of a process that is killed."""


coming = st.tuples(st.integers(0, 2), st.integers(1, 3000), st.sampled_from(["", "", "shelf-written", "shelf-room"]))


@pytest.mark.slow
@settings(max_examples=20)  # each writes to a disk
@given(brought=st.lists(coming, max_size=10), untrue=st.sets(st.integers(0, 9)), total=st.integers(8_000, 30_000))
def test_never_over_budget(brought: list[tuple[int, int, str]], untrue: set[int], total: int) -> None:
    """Whatever comes and wherever it is cut off: after each the room is kept, also for who opens the shelf again."""
    room = BundleQuota(total=total, one=total // 2, count=2)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        refuted: set[Multihash] = set()
        for number, (whom, size, end) in enumerate(brought):

            def step(name: str, end: str = end) -> None:
                if name == end:
                    raise Ended

            bundles = BundleStore(folder, room, lambda _: refuted, step)
            manifest, sources = evidence(whom, size, number)
            try:
                bundles.keep(manifest, sources)
            except Ended:
                assert not bundles.has(manifest.id)
            except Environment:
                assert size > room.one - 6000, "only what is too large for the room of one dataset"
            else:
                assert BundleStore(folder, room).path(manifest.id) == bundles.path(manifest.id)
            if number in untrue:
                refuted.add(manifest.id)
            files = [path for path in folder.iterdir() if path.suffix == ".odfe"]
            assert sum(path.stat().st_size for path in files) <= total
            for key in KEYS:
                alike = [path for path in files if key.dataset_id.multibase in path.name]
                assert len(alike) <= room.count
                assert sum(path.stat().st_size for path in alike) <= room.one


def test_what_one_that_was_killed_left_is_cleared_away(tmp_path: Path) -> None:
    left = tmp_path / f"{Multihash.sha3_256(b'x')}.77.part"
    left.write_bytes(b"half")
    (tmp_path / "notes.odfe").write_bytes(b"not ours")
    bundles = BundleStore(tmp_path)
    assert not left.exists()
    manifest, sources = evidence(0, 10, 1)
    assert bundles.has(bundles.keep(manifest, sources))
    assert (tmp_path / "notes.odfe").exists()


def test_a_shelf_of_before_is_read_and_goes_with_the_oldest(tmp_path: Path) -> None:
    """Files that do not name whom they accuse are found by their id, and count for all."""
    manifest, sources = evidence(0, 10, 1)
    made = BundleStore(tmp_path).keep(manifest, sources)
    size = BundleStore(tmp_path).path(made).rename(tmp_path / f"{made}.odfe").stat().st_size
    again = BundleStore(tmp_path, BundleQuota(total=2 * size - 1))
    assert again.path(made).name == f"{made}.odfe"
    again.keep(*evidence(1, 10, 2))
    assert not again.has(made)


def test_nobody_is_accused_without_his_signature(tmp_path: Path) -> None:
    manifest, sources = evidence(0, 10, 1)
    with pytest.raises(Invalid):
        BundleStore(tmp_path).keep(msgspec.structs.replace(manifest, head={}), sources)
    assert not list(tmp_path.iterdir())

"""Evidence: bundles, the shelf that they are kept on, and which of it counts."""

from __future__ import annotations

import io
import sqlite3
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chain import instant
from chain.errors import Environment, Invalid, NotFound
from chain.ids import KeyDid
from chain.instant import Instant
from chain.multihash import Multihash
from chain.statements import canonical, envelope, proof, statement
from chain.statements.keys import SigningKey
from chain.statements.proof import Proof
from chain.statements.statement import (
    Actual,
    Attestation,
    Authority,
    EngineUsed,
    HeadStatement,
    Mismatch,
    Roots,
    Span,
    Writer,
)
from chain.statements.tree import Frontier
from engines.contract import EngineIdentity
from odfd.policy.policy import KeyGroup, Policy
from odfd.store.ledger.log import STEPS
from odfd.store.ledger.proofs import Proofs
from odfd.store.ledger.resolutions import BRANCH, Resolution, Resolutions
from odfd.store.ledger.runs import Recheck, RecordedRun, with_rechecks
from odfd.trust.evidence import bundle
from odfd.trust.evidence.bundle import (
    BUNDLE,
    BundleManifest,
    BundleReader,
    GatheredBundle,
    IncompleteBundle,
    Listed,
    TooLarge,
    decode_manifest,
    unpacked,
)
from odfd.trust.evidence.bundle_store import BundleQuota, BundleStore, StoredBundle, leaving
from odfd.trust.validation.evidence_rechecker import Claim, EvidenceRechecker, OwnFindings, _run, claims
from odfd.trust.validation.recheck import RecheckAnswer, Result, recheck
from odfd.verify.report import VerifyFinding
from worlds.statements import attestation_statement, head_statement

# A bundle says one thing to everyone: what the accused signed. What the reporter adds changes nothing.


async def recheck_answer(raw: bytes, engine: Any, folder: Path) -> RecheckAnswer:
    (folder / "staging").mkdir(parents=True)
    with unpacked(io.BytesIO(raw), "lie.odfe", folder) as case:
        return await recheck(case, engine, folder / "staging")


def refused(raw: bytes, folder: Path) -> Invalid:
    folder.mkdir(exist_ok=True)
    with pytest.raises(Invalid) as caught, unpacked(io.BytesIO(raw), "lie.odfe", folder):
        pass
    return caught.value


def found_in(folder: Path, pattern: str) -> list[str]:
    return [path.name for path in folder.rglob(pattern)]


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 3])
async def test_a_lie_is_confirmed_with_its_row(accused: Any, accused_world: Any, tmp_path: Path, steps: int) -> None:
    await accused.publish(steps)
    found = await recheck_answer(await accused.bundle(), accused_world.LyingEngine(), tmp_path / "recheck")
    assert (found.result, found.sequence_number) == ("confirmed", accused.chain.head().sequence_number)
    assert found.finding is not None
    (cell,) = found.finding.cells
    assert (cell.row, cell.column) == (0, "k")
    assert cell.published == cell.computed + 1
    assert found.computed == found.claimed != found.published


async def test_a_truth_is_refuted(accused: Any, accused_world: Any, tmp_path: Path) -> None:
    await accused.publish(2, lies=False)
    found = await recheck_answer(await accused.bundle(), accused_world.LyingEngine(), tmp_path / "recheck")
    assert found.result == "refuted"


@pytest.mark.slow
@pytest.mark.parametrize("query", ["select * from x", "SELECT * FROM x"])
async def test_a_lie_in_a_handover_is_confirmed(accused: Any, accused_world: Any, tmp_path: Path, query: str) -> None:
    """The first transaction of a transform that is declared anew needs what came before; the file has it."""
    await accused.publish(2, lies=False, pin="sha256:" + "1" * 64)
    accused.declare(query, accused_world.PIN)
    accused.world.add_rows([31, 32], 3000)
    await accused.derive(lies=True)
    found = await recheck_answer(await accused.bundle(), accused_world.LyingEngine(), tmp_path / "recheck")
    assert (found.result, found.sequence_number) == ("confirmed", accused.chain.head().sequence_number)


async def test_wrong_digest_abstains(accused: Any, accused_world: Any, tmp_path: Path) -> None:
    """Attack T-VERDICT-03: a modified engine.

    Defence: no verdict under a digest other than the pinned one.

    An engine that is not the pinned one accuses nobody, and neither does a transform that pins none.
    """
    await accused.publish(1, pin="sha256:" + "1" * 64)
    found = await recheck_answer(await accused.bundle(), accused_world.LyingEngine(), tmp_path / "recheck")
    assert (found.result, "pins the engine" in found.reason) == ("unable", True)


async def test_no_pin_no_blame(accused: Any, accused_world: Any, tmp_path: Path) -> None:
    await accused.publish(1, pin=None)
    found = await recheck_answer(await accused.bundle(), accused_world.LyingEngine(), tmp_path / "recheck")
    assert (found.result, "pins no engine" in found.reason) == ("unable", True)


async def test_a_third_answer_blames_nobody(accused: Any, accused_world: Any, tmp_path: Path) -> None:
    await accused.publish(2)
    made = await accused.gathered()
    other = msgspec.structs.replace(made.manifest.actual, logical_hash=Multihash.sha3_256(b"another"))
    raw = accused_world.packed(with_manifest(made, actual=other))
    found = await recheck_answer(raw, accused_world.LyingEngine(), tmp_path / "recheck")
    assert (found.result, "third result" in found.reason) == ("unable", True)


def with_manifest(made: GatheredBundle, **changes: Any) -> GatheredBundle:
    return GatheredBundle(msgspec.structs.replace(made.manifest, **changes), made.sources)


async def test_bundle_adds_no_claims(accused: Any, accused_world: Any, tmp_path: Path) -> None:
    """Attack T-VERDICT-06: a manipulated evidence bundle.

    Defence: each part is bound by hash to the signature of the accused; claims of the reporter decide nothing.

    Whatever a reporter changes, the answer is about what the accused signed, or there is none.
    """
    await accused.publish(2)
    made = await accused.gathered()
    mallory = SigningKey(b"m" * 32)
    said, _ = accused.head()
    forged, sealed = accused_world.signed_head(mallory, said.size, said.root_hash, said.head)
    envelope = msgspec.json.decode(sealed.envelope)
    with_forged = accused_world.packed(with_manifest(made, head=envelope))
    with pytest.raises(Invalid) as caught:
        await recheck_answer(with_forged, accused_world.LyingEngine(), tmp_path / "forged")
    assert caught.value.rule == "bundle-path" or caught.value.rule == "graft"
    other = [msgspec.structs.replace(each, path=(b"\0" * 32,) if each.path else None) for each in made.manifest.objects]
    assert refused(accused_world.packed(with_manifest(made, objects=tuple(other))), tmp_path / "path").rule == (
        "bundle-path"
    )
    assert forged.dataset == mallory.dataset_id


async def test_a_reporter_adds_nothing(accused: Any, accused_world: Any, tmp_path: Path) -> None:
    """Attack T-VERDICT-06: evidence with additional content, to be stored and passed on.

    Defence: content that no signature names is refused and not kept.

    Bytes that nothing signed names are no evidence, and nobody is made to keep and give them away.
    """
    await accused.publish(2)
    made = await accused.gathered()
    name = Multihash.sha3_256(b"contraband")
    more = (*made.manifest.objects, Listed(hash=name, size=10))
    added = GatheredBundle(msgspec.structs.replace(made.manifest, objects=more), {**made.sources, name: b"contraband"})
    fault = refused(accused_world.packed(added), tmp_path / "added")
    assert (fault.rule, name.short in fault.message) == ("bundle-object", True)


@pytest.mark.slow
async def test_an_input_whose_slice_is_not_what_its_block_says_is_no_evidence(
    accused: Any, accused_world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A re-run over it would answer for rows that the input's own publisher never stated."""
    await accused.publish(2)
    packed = accused_world.packed(await accused.gathered())
    wrong = VerifyFinding(rule="logical-hash", message="the rows are others")
    looked_at: list[Any] = []
    monkeypatch.setattr(bundle, "check_slice", lambda _, claim: looked_at.append(claim) or [wrong])
    fault = refused(packed, tmp_path / "input")
    assert (fault.rule, len(looked_at)) == ("logical-hash", 1), "the first slice of the input, before any of the step"
    assert accused.head()[0].dataset.short not in str(fault.place)


@pytest.mark.slow
async def test_nothing_may_be_left_out_of_a_chain(accused: Any, accused_world: Any, tmp_path: Path) -> None:
    """Attack T-VERDICT-06: accusation by omission.

    Defence: chains are included whole, link by link: a gap makes a bundle incomplete, never a verdict.

    A reporter who could leave out the newest SetTransform could accuse an honest publisher.
    """
    await accused.publish(2)
    made = await accused.gathered()
    for number, gone in enumerate(made.manifest.objects):
        if gone.sequence_number is None or gone.path is not None:
            continue
        rest = tuple(each for each in made.manifest.objects if each is not gone)
        raw = accused_world.packed(with_manifest(made, objects=rest))
        folder = tmp_path / f"without-{number}"
        folder.mkdir()
        with unpacked(io.BytesIO(raw), "lie.odfe", folder) as case:
            assert isinstance(case, IncompleteBundle)


async def test_a_missing_slice_is_said(accused: Any, accused_world: Any, tmp_path: Path) -> None:
    await accused.publish(1)
    made = await accused.gathered()
    step = accused.chain.block_at(accused.chain.head().sequence_number).event
    rest = tuple(
        each
        for each in made.manifest.objects
        if each.sequence_number is not None or each.hash == step.new_data.physical_hash
    )
    found = await recheck_answer(
        accused_world.packed(with_manifest(made, objects=rest)), accused_world.LyingEngine(), tmp_path / "recheck"
    )
    assert (found.result, "not here" in found.reason) == ("incomplete", True)


async def test_files_that_are_no_bundles(accused: Any, accused_world: Any, tmp_path: Path) -> None:
    await accused.publish(1)
    raw = await accused.bundle()
    folder = tmp_path / "refused"
    for bad in (b"", b"garbage", bytes(512), raw[:700], raw[: len(raw) // 2], raw + b"more", b"x" + raw):
        assert refused(bad, folder).place == "lie.odfe"


async def test_one_flipped_bit_is_found(accused: Any, tmp_path: Path) -> None:
    """In an object; in the manifest; in a header: each has its own message, and none is an answer."""
    await accused.publish(1)
    raw = await accused.bundle()
    with tarfile.open(fileobj=io.BytesIO(raw)) as archive:
        members = archive.getmembers()
    for number, member in enumerate((members[0], members[1], members[-1])):
        at = member.offset_data + member.size // 2
        flipped = raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]
        assert refused(flipped, tmp_path / f"flipped-{number}").rule


@pytest.mark.parametrize("name", ["../escape", "/etc/passwd", "objects/../../escape", "objects/f1620" + "0" * 64])
async def test_names_in_the_file_never_become_paths(accused: Any, tmp_path: Path, name: str) -> None:
    """Attack T-VERDICT-06: an archive with paths outside its folder.

    Defence: names in the file are compared and never used as paths; links and folders are refused.
    """
    await accused.publish(1)
    raw = await accused.bundle()
    with tarfile.open(fileobj=io.BytesIO(raw)) as archive:
        member = archive.getmembers()[1]
    entry = tarfile.TarInfo(name)
    entry.size = member.size
    folder = tmp_path / "deep" / "folder"
    folder.mkdir(parents=True)
    bad = raw[: member.offset] + entry.tobuf(tarfile.USTAR_FORMAT) + raw[member.offset_data :]
    assert refused(bad, folder).rule == "bundle-file"
    assert not found_in(tmp_path, "*escape*")


async def test_links_and_folders_are_refused(accused: Any, tmp_path: Path) -> None:
    await accused.publish(1)
    raw = await accused.bundle()
    with tarfile.open(fileobj=io.BytesIO(raw)) as archive:
        member = archive.getmembers()[1]
    for number, kind in enumerate((tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.XHDTYPE)):
        entry = tarfile.TarInfo(member.name)
        entry.type, entry.size, entry.linkname = kind, member.size, "/etc/passwd"
        bad = raw[: member.offset] + entry.tobuf(tarfile.USTAR_FORMAT) + raw[member.offset_data :]
        assert refused(bad, tmp_path / f"kind-{number}").rule == "bundle-file"


async def test_what_is_too_large_is_refused_before_it_is_read(accused: Any, accused_world: Any, tmp_path: Path) -> None:
    await accused.publish(1)
    made = await accused.gathered()
    huge = Listed(hash=Multihash.sha3_256(b"huge"), size=bundle.MAX_BUNDLE)
    manifest = msgspec.structs.replace(made.manifest, objects=(*made.manifest.objects, huge)).encode()
    entry = tarfile.TarInfo(bundle.MANIFEST)
    entry.size = len(manifest)
    raw = entry.tobuf(tarfile.USTAR_FORMAT) + manifest + bytes(-len(manifest) % 512)
    assert refused(raw, tmp_path / "huge").rule == "bundle-size"
    entry.size = bundle.MAX_MANIFEST + 1
    assert refused(entry.tobuf(tarfile.USTAR_FORMAT), tmp_path / "manifest").rule == "bundle-file"


async def test_flood_is_bounded(accused: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Attack T-VERDICT-06: evidence flood.

    Defence: four bundles of a dataset, half of the store for it, 1 GiB for all; false ones are removed first, then the
    oldest; budgets for one bundle and for proofs; sizes are checked before bytes are read.

    A step that reads too much is accused without a bundle; four are kept of a dataset, and the oldest goes.
    """
    await accused.publish(1)
    made = await accused.gathered()
    (tmp_path / "shelf").mkdir()
    bundles = BundleStore(tmp_path / "shelf")
    kept = []
    for records in range(90, 95):
        each = with_manifest(made, actual=msgspec.structs.replace(made.manifest.actual, records=records))
        kept.append(bundles.keep(each.manifest, each.sources))
    assert [bundles.has(name) for name in kept] == [False, True, True, True, True]
    with pytest.raises(NotFound):
        bundles.path(kept[0])
    small = BundleStore(tmp_path / "shelf", BundleQuota(total=100))
    with pytest.raises(Environment, match="100 are kept"):
        small.keep(made.manifest, made.sources)
    assert small.has(kept[1]), "what does not fit pushes nothing out"
    monkeypatch.setattr(bundle, "BUDGET", 100)
    with pytest.raises(AssertionError) as caught:
        await accused.gathered()
    assert isinstance(caught.value.args[0], TooLarge)


@pytest.mark.slow
async def test_a_kept_bundle_is_the_same_file_again(accused: Any, accused_world: Any, tmp_path: Path) -> None:
    await accused.publish(2)
    made = await accused.gathered()
    bundles = BundleStore(tmp_path)
    kept = bundles.keep(made.manifest, made.sources)
    assert kept == made.manifest.id == bundles.keep(made.manifest, made.sources)
    raw = bundles.path(kept).read_bytes()
    assert raw == accused_world.packed(made) == await accused.bundle()


async def test_a_damaged_object_is_not_kept_as_evidence(accused: Any, tmp_path: Path) -> None:
    await accused.publish(1)
    made = await accused.gathered()
    spoiled = {name: b"x" * len(raw) if isinstance(raw, bytes) else raw for name, raw in made.sources.items()}
    with pytest.raises(Invalid, match="damaged"):
        BundleStore(tmp_path).keep(made.manifest, spoiled)
    assert not found_in(tmp_path, "f1620*.odfe")


def read_through(raw: bytes) -> list[bytes]:
    return [b"".join(pieces) for _, pieces in BundleReader(io.BytesIO(raw), "x").objects()]


objects = st.lists(st.binary(max_size=2000), max_size=6, unique=True)


@given(contents=objects, cut=st.integers(0, 3000))
def test_what_is_written_is_read(contents: list[bytes], cut: int) -> None:
    """Any objects come back in order; a file that was cut off anywhere never does."""
    listed = tuple(Listed(hash=Multihash.sha3_256(each), size=len(each)) for each in contents)
    manifest = bundle.BundleManifest(
        type=bundle.BUNDLE, head={}, sequence_number=1, actual=bundle.Actual(records=0), objects=listed
    )
    by_name = {each.hash: raw for each, raw in zip(listed, contents, strict=True)}
    out = io.BytesIO()
    bundle.write(manifest, lambda each: io.BytesIO(by_name[each.hash]), out)
    assert BundleReader(io.BytesIO(out.getvalue()), "x").manifest == manifest
    assert read_through(out.getvalue()) == contents
    short = out.getvalue()[: max(0, len(out.getvalue()) - 1 - cut)]
    with pytest.raises(Invalid):
        read_through(short)


@given(st.binary(max_size=3000))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    with pytest.raises(Invalid):
        BundleReader(io.BytesIO(raw), "x")
    with pytest.raises(Invalid):
        bundle.decode_manifest(raw)


# What is kept of evidence: never more than there is room for, whatever comes, in which order, and whatever ends it.

KEYS = [SigningKey(bytes([number]) * 32) for number in range(3)]
NOW = instant.parse("2026-11-20T08:00:00Z")


def head_value(key: SigningKey) -> dict[str, canonical.Json]:
    said = head_statement(key.dataset_id, 2, bytes(32), head=Multihash.sha3_256(b"head"))
    value = canonical.decode(envelope.seal(statement.encode(said), key))
    assert isinstance(value, dict)
    return value


HEADS = [head_value(key) for key in KEYS]


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
bundles_kept = st.builds(
    StoredBundle,
    name=names,
    dataset=st.sampled_from([key.dataset_id for key in KEYS]),
    size=st.integers(1, 60),
    at=st.integers(0, 5),
    refuted=st.booleans(),
)
rooms = st.builds(BundleQuota, total=st.integers(60, 200), one=st.integers(60, 200), count=st.integers(1, 4))


@given(
    bundles=st.lists(bundles_kept, max_size=12, unique_by=lambda each: each.name),
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
    """Attack T-VERDICT-06: evidence about one dataset that displaces that about others, or a crash between removal and
    insertion.

    Defence: room is made by a rule independent of order, before the new bundle is visible.

    Whatever comes and wherever it is cut off: after each the room is kept, also for who opens the shelf again.
    """
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


# Which evidence is looked into, and what of it counts.

DATASET = SigningKey(b"d" * 32).dataset_id
CLAIMANTS = [SigningKey(bytes([number]) * 32).did for number in range(5)]
ENGINE = EngineUsed(name="spark", digest="sha256:e", pinned=True, sandbox="image", platform="linux/amd64")
POLICY = Policy(
    tolerated=1, groups=tuple(KeyGroup(f"g{number}", frozenset({key})) for number, key in enumerate(CLAIMANTS[:4]))
)
"""The fifth key is a stranger's."""


def bundle_of(*words: object) -> Multihash:
    return Multihash.sha3_256(repr(words).encode())


def says(key: KeyDid, wrong: dict[int, int], *, pinned: bool = True, determinism: str = "strict") -> Attestation:
    """Steps on which it got another answer, and which."""
    return attestation_statement(
        key,
        DATASET,
        10,
        bytes(32),
        determinism=determinism,
        engines=(msgspec.structs.replace(ENGINE, pinned=pinned),),
        spans=tuple(Span(first=step, last=step, verdict="mismatch", state="genesis", engine=0) for step in wrong),
        mismatch=tuple(
            Mismatch(sequence_number=step, runs=3, bundle=bundle_of(key, step), actual=Actual(records=value))
            for step, value in wrong.items()
        ),
        head=bundle_of("head"),
    )


def run(step: int, verdict: str = "reproduced", first: int | None = None) -> RecordedRun:
    return RecordedRun(sequence_number=step, first=first, block=bundle_of(step), at=NOW, verdict=verdict, engine=ENGINE)


def own(**more: Any) -> OwnFindings:
    return OwnFindings(
        **{"runs": {}, "done": {}, "resting": (), "engine": ENGINE.digest, "has": lambda _: False, **more}
    )


said = st.dictionaries(st.sampled_from(CLAIMANTS), st.dictionaries(st.integers(0, 9), st.integers(0, 1), max_size=3))


@given(
    words=said,
    suspended=st.sets(st.sampled_from(["g0", "g1", "g2"])),
    resting=st.sets(st.sampled_from(["g0", "g1", "g2"])),
    judged=st.sets(st.integers(0, 9), max_size=3),
)
def test_only_what_listed_groups_say_of_steps_without_own_verdict(
    words: dict[KeyDid, dict[int, int]], suspended: set[str], resting: set[str], judged: set[int]
) -> None:
    """Attack T-VERDICT-06: evidence fetched because of an unlisted key, or about datasets not held here.

    Defence: evidence is fetched only for listed groups, about steps without a verdict of this node.
    """
    heard = {key: says(key, wrong) for key, wrong in words.items()}
    mine = own(runs={step: run(step) for step in sorted(judged)}, resting=resting)
    found = claims(POLICY, DATASET, heard, suspended, mine)
    assert found == claims(POLICY, DATASET, dict(reversed(heard.items())), suspended, mine)
    assert found == sorted(found)
    expected = {
        bundle_of(key, step)
        for key, wrong in words.items()
        for step in wrong
        if POLICY.group_of(key) not in {None, *suspended, *resting} and step not in judged
    }
    assert {each.bundle for each in found} == expected
    for each in found:
        alike = sum(
            words[key].get(each.step) == words[each.signers[0]][each.step]
            for key in words
            if POLICY.group_of(key) not in {None, *suspended}
        )
        assert each.doubt == int(alike <= POLICY.tolerated)


@pytest.mark.parametrize("change", [{"pinned": False}, {"determinism": "unknown"}])
def test_what_accuses_nobody_is_not_looked_into(change: dict[str, Any]) -> None:
    heard = {CLAIMANTS[0]: says(CLAIMANTS[0], {1: 1}, **change)}
    assert claims(POLICY, DATASET, heard, (), own()) == []


def test_without_an_engine_one_bundle_of_what_is_refuted() -> None:
    alone = {CLAIMANTS[0]: says(CLAIMANTS[0], {1: 1})}
    assert claims(POLICY, DATASET, alone, (), own(engine=None)) == []
    two = {key: says(key, {1: 1}) for key in CLAIMANTS[:2]}
    found = claims(POLICY, DATASET, two, (), own(engine=None))
    assert {each.group for each in found} == {"g0", "g1"}
    assert claims(POLICY, DATASET, two, (), own(engine=None, has=lambda name: name == found[1].bundle)) == []


def test_a_bundle_is_looked_into_once_unless_the_engine_is_another() -> None:
    heard = {CLAIMANTS[0]: says(CLAIMANTS[0], {1: 1})}
    (claim,) = claims(POLICY, DATASET, heard, (), own())
    for result, engine, again in (("refuted", "sha256:x", 0), ("unable", ENGINE.digest, 0), ("unable", "sha256:x", 1)):
        used = msgspec.structs.replace(ENGINE, digest=engine)
        kept = msgspec.structs.replace(run(1, ""), engine=used)
        before = Recheck(bundle=claim.bundle, dataset=DATASET, group="g0", result=result, run=kept)
        assert len(claims(POLICY, DATASET, heard, (), own(done={claim.bundle: before}))) == again


def answer(result: Result, state: str | None, reason: str = "") -> RecheckAnswer:
    return RecheckAnswer(
        result=result.value,
        reason=reason,
        bundle=bundle_of("bundle"),
        dataset=DATASET,
        sequence_number=1,
        block=bundle_of(1),
        head=bundle_of("head"),
        signed_at="2026-11-20T08:00:00Z",
        state=state,
        claimed=Actual(records=1),
        computed=Actual(records=2),
    )


@pytest.mark.parametrize(
    ("result", "state", "reason", "verdict"),
    [
        (Result.CONFIRMED, "genesis", "", "mismatch"),
        (Result.CONFIRMED, "compared", "", "mismatch"),
        (Result.REFUTED, "genesis", "", "reproduced"),
        (Result.REFUTED, "compared", "", ""),
        (Result.UNABLE, None, "another engine", ""),
        (Result.UNABLE, "genesis", "nondeterministic", "not-reproducible-here"),
        (Result.INCOMPLETE, None, "a block", ""),
    ],
)
def test_a_forged_checkpoint_makes_no_own_word(result: Result, state: str | None, reason: str, verdict: str) -> None:
    """Attack T-VERDICT-06: evidence with a forged checkpoint that makes a false step look right.

    Defence: a run affirms only if it began at the first step; it refutes in any case.

    Behind one that was published every later lie reproduces; a step that is wrong even so is wrong.
    """
    identity = EngineIdentity(name="spark", version="4", digest=ENGINE.digest, sandbox="image", platform="linux/amd64")
    claim = Claim(0, 1, bundle_of("bundle"), "g0", DATASET, (CLAIMANTS[0],))
    found = _run(claim, answer(result, state, reason), 3, identity, Instant(NOW))
    assert found.verdict == verdict
    assert (found.actual is not None) == (verdict in ("mismatch", "reproduced"))


def test_what_the_analysis_here_calls_not_strict_is_nobodys_fault() -> None:
    identity = EngineIdentity(name="spark", version="4", digest=ENGINE.digest, sandbox="image", platform="linux/amd64")
    claim = Claim(0, 1, bundle_of("bundle"), "g0", DATASET, (CLAIMANTS[0],))
    for found, verdict in (("no", "not-reproducible-here"), ("unknown", "")):
        said = msgspec.structs.replace(answer(Result.UNABLE, None, "nobody is blamed"), determinism=found)
        run = _run(claim, said, 1, identity, Instant(NOW))
        assert run.verdict == verdict


stretches = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=4)


@given(stretches=stretches, rechecked=st.dictionaries(st.integers(0, 20), st.booleans(), max_size=6))
def test_own_runs_go_before_rechecks_and_blocks_that_are_gone_count_nothing(
    stretches: list[tuple[int, int]], rechecked: dict[int, bool]
) -> None:
    own, at = {}, 0
    covered: set[int] = set()
    for gap, length in stretches:
        first, at = at + gap, at + gap + length
        own[at] = run(at, first=first)
        covered |= set(range(first, at + 1))
        at += 1
    found = with_rechecks(
        own,
        [
            Recheck(
                bundle=bundle_of("b", step), dataset=DATASET, group="g", result="confirmed", run=run(step, "mismatch")
            )
            for step in rechecked
        ],
        lambda step: bundle_of(step) if rechecked[step] else None,
    )
    assert list(found) == sorted(found)
    assert found.items() >= own.items()
    assert found.keys() - own.keys() == {step for step, stands in rechecked.items() if stands} - covered


async def test_evidence_about_the_same_step_of_another_history_is_dropped(tmp_path: Path) -> None:
    """It is sound by itself: the accused signed both. A run of it says nothing of the block that is here."""
    here, there = bundle_of("here"), bundle_of("there")
    rechecker: Any = object.__new__(EvidenceRechecker)
    rechecker._hash_at = lambda _claim: here
    case: Any = SimpleNamespace(
        head=SimpleNamespace(dataset=DATASET),
        manifest=SimpleNamespace(sequence_number=3),
        step=SimpleNamespace(hash=there),
    )
    claim = Claim(1, 3, bundle_of("named"), "g0", DATASET, (CLAIMANTS[0],))
    for said in (claim, claim._replace(step=4), claim._replace(dataset=SigningKey(b"e" * 32).dataset_id)):
        with pytest.raises(Invalid) as caught:
            await rechecker._answer(said, case, tmp_path)
        assert caught.value.rule == "bundle-step"


# A bundle against a writer that the authority names: it brings the walk, so that whoever checks needs nothing else.

ACCUSED_OWNER, NODE = SigningKey(b"d" * 32), SigningKey(b"n" * 32)


def form(sealed: bytes) -> Any:
    return canonical.decode(sealed)


def version_one(by: SigningKey = ACCUSED_OWNER) -> bytes:
    said = Authority(
        dataset=ACCUSED_OWNER.dataset_id, version=1, issued_at=statement.when(NOW), head=Multihash.sha3_256(b"seed"),
        roots=Roots(threshold=1, keys=(ACCUSED_OWNER.did,)),
        writers=tuple(Writer(key=key.did, expires_at="2027-06-01T00:00:00Z") for key in (ACCUSED_OWNER, NODE)),
    )  # fmt: skip
    return envelope.seal(statement.encode(said), by)


def manifest(by: SigningKey = NODE, *versions: bytes, at: Instant = NOW) -> BundleManifest:
    said = head_statement(ACCUSED_OWNER.dataset_id, 8, at=at, lasts=86400 * instant.SECOND, authority=1)
    return BundleManifest(
        type=BUNDLE, head=form(envelope.seal(statement.encode(said), by)), sequence_number=7, objects=(),
        actual=Actual(records=1), authority=tuple(map(form, versions)),
    )  # fmt: skip


def test_the_walk_comes_with_the_bundle() -> None:
    made = manifest(NODE, version_one())
    assert decode_manifest(made.encode()) == made
    head, signed = made.accused()
    assert (head.authority, signed.signers) == (1, (NODE.did,))


def test_nothing_is_written_where_there_is_no_later_version() -> None:
    plain = msgspec.structs.replace(manifest(NODE, version_one()), authority=())
    assert b"authority" not in plain.encode().replace(b"payload", b"")


@pytest.mark.parametrize(
    ("made", "rule"),
    [
        (manifest(NODE), "bundle-authority"),
        (manifest(SigningKey(b"x" * 32), version_one()), "bundle-head"),
        (manifest(NODE, version_one(by=NODE)), "authority-signatures"),
        (manifest(NODE, version_one(), at=instant.parse("2027-06-01T00:00:00Z")), "bundle-head"),
    ],
)
def test_a_head_that_no_writer_signed_accuses_nobody(made: BundleManifest, rule: str) -> None:
    with pytest.raises(Invalid) as caught:
        made.accused()
    assert caught.value.rule == rule


def test_only_authorities_stand_in_the_walk() -> None:
    made = manifest(NODE, version_one())
    with pytest.raises(Invalid, match="something else"):
        msgspec.structs.replace(made, authority=(made.head,)).accused()


# Which proofs are kept: a join, whatever order they come in; and what an operator settled of a fork.

FORKING = SigningKey(b"o" * 32)
MINE = [b"m%31d" % number for number in range(10)]


def branch(at: int) -> list[bytes]:
    return [*MINE[:at], *(b"%2d%30d" % (at, number) for number in range(at, 10))]


def forked_head(leaves: Sequence[bytes], seconds: int) -> bytes:
    tree = Frontier().extend(leaves)
    said = HeadStatement(
        dataset=FORKING.dataset_id,
        epoch=0,
        size=tree.size,
        root_hash=tree.root,
        authority=0,
        issued_at=statement.when(Instant(NOW + seconds * instant.SECOND)),
        expires_at="2026-11-27T08:00:00Z",
        head=Multihash.sha3_256(leaves[-1]),
    )
    return envelope.seal(statement.encode(said), FORKING)


def forked(at: int, seconds: int) -> Proof:
    theirs = branch(at)
    return proof.fork(
        forked_head(MINE, 0),
        forked_head(theirs, seconds),
        lambda start, stop: MINE[start:stop],
        lambda start, stop: theirs[start:stop],
    )


def voted_twice(validator: int, verdict: str) -> Proof:
    key = SigningKey(bytes([validator]) * 32)

    def vote(said: str) -> bytes:
        body = attestation_statement(
            key.did, FORKING.dataset_id, 10, spans=(Span(first=0, last=9, verdict=said),), engines=()
        )
        return envelope.seal(statement.encode(body), key)

    return proof.double_vote(vote("reproduced"), vote(verdict))


FORKS = [forked(at, seconds) for at in (3, 6, 8) for seconds in (0, 1, 2)]
VOTES = [voted_twice(validator, verdict) for validator in (1, 2) for verdict in ("not-attempted", "mismatch")]


def kept(heard: Sequence[Proof], settled: int | None = None) -> tuple[set[Multihash], int | None]:
    connection = sqlite3.connect(":memory:")
    for step in STEPS:
        connection.executescript(step)
    if settled is not None:
        made = Resolution(matter=BRANCH, number=0, place=settled, name=Multihash.sha3_256(b"block"), at=NOW)
        Resolutions(connection).keep(FORKING.dataset_id, made)
    proofs = Proofs(connection)
    for each in heard:
        proofs.keep(each)
    found = {each.id for each in proofs.of(FORKING.dataset_id)}
    answer = found, proofs.forked_at(FORKING.dataset_id, 0)
    assert proofs.is_forked(FORKING.dataset_id) == any(each.kind == proof.FORK for each in heard)
    connection.close()
    return answer


@pytest.mark.slow
@settings(max_examples=60)
@given(
    st.lists(st.sampled_from([*FORKS, *VOTES]), min_size=1, max_size=10), st.randoms(), st.sampled_from([None, 3, 6])
)
def test_any_order_of_hearing_leaves_the_same_proofs(heard: list[Proof], rng, settled: int | None) -> None:
    shuffled = heard * 2
    rng.shuffle(shuffled)
    assert kept(shuffled, settled) == kept(heard, settled)


def test_of_one_place_the_lowest_id_is_kept() -> None:
    alike = FORKS[:3]
    assert kept(alike)[0] == kept(alike[::-1])[0] == {min(each.id for each in alike)}
    votes = VOTES[:2]
    assert kept(votes)[0] == kept(votes[::-1])[0] == {min(each.id for each in votes)}


def test_a_fork_beyond_what_was_settled_stops_again() -> None:
    """Attack T-HEAD-03: a second fork after one that the operator resolved.

    Defence: a resolution covers blocks up to the one that it names.
    """
    early, late = FORKS[0], FORKS[6]
    assert kept([early, late]) == ({early.id}, 3)
    assert kept([early, late], 6) == kept([late, early], 6) == ({early.id, late.id}, 8)
    assert kept([early], 6) == ({early.id}, None)

"""A bundle says one thing to everyone: what the accused signed. What the reporter adds changes nothing."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.errors import Environment, Invalid, NotFound
from chain.multihash import Multihash
from chain.statements.keys import SigningKey
from odfd.trust.evidence import bundle
from odfd.trust.evidence.bundle import BundleReader, GatheredBundle, IncompleteBundle, Listed, TooLarge, unpacked
from odfd.trust.evidence.bundle_store import BundleQuota, BundleStore
from odfd.trust.validation.recheck import RecheckAnswer, recheck
from odfd.verify.report import VerifyFinding


async def answer(raw: bytes, engine: Any, folder: Path) -> RecheckAnswer:
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
    found = await answer(await accused.bundle(), accused_world.LyingEngine(), tmp_path / "recheck")
    assert (found.result, found.sequence_number) == ("confirmed", accused.chain.head().sequence_number)
    assert found.finding is not None
    (cell,) = found.finding.cells
    assert (cell.row, cell.column) == (0, "k")
    assert cell.published == cell.computed + 1
    assert found.computed == found.claimed != found.published


async def test_a_truth_is_refuted(accused: Any, accused_world: Any, tmp_path: Path) -> None:
    await accused.publish(2, lies=False)
    found = await answer(await accused.bundle(), accused_world.LyingEngine(), tmp_path / "recheck")
    assert found.result == "refuted"


@pytest.mark.slow
@pytest.mark.parametrize("query", ["select * from x", "SELECT * FROM x"])
async def test_a_lie_in_a_handover_is_confirmed(accused: Any, accused_world: Any, tmp_path: Path, query: str) -> None:
    """The first transaction of a transform that is declared anew needs what came before; the file has it."""
    await accused.publish(2, lies=False, pin="sha256:" + "1" * 64)
    accused.declare(query, accused_world.PIN)
    accused.world.add_rows([31, 32], 3000)
    await accused.derive(lies=True)
    found = await answer(await accused.bundle(), accused_world.LyingEngine(), tmp_path / "recheck")
    assert (found.result, found.sequence_number) == ("confirmed", accused.chain.head().sequence_number)


async def test_wrong_digest_abstains(accused: Any, accused_world: Any, tmp_path: Path) -> None:
    """An engine that is not the pinned one accuses nobody, and neither does a transform that pins none."""
    await accused.publish(1, pin="sha256:" + "1" * 64)
    found = await answer(await accused.bundle(), accused_world.LyingEngine(), tmp_path / "recheck")
    assert (found.result, "pins the engine" in found.reason) == ("unable", True)


async def test_no_pin_no_blame(accused: Any, accused_world: Any, tmp_path: Path) -> None:
    await accused.publish(1, pin=None)
    found = await answer(await accused.bundle(), accused_world.LyingEngine(), tmp_path / "recheck")
    assert (found.result, "pins no engine" in found.reason) == ("unable", True)


async def test_a_third_answer_blames_nobody(accused: Any, accused_world: Any, tmp_path: Path) -> None:
    await accused.publish(2)
    made = await accused.gathered()
    other = msgspec.structs.replace(made.manifest.actual, logical_hash=Multihash.sha3_256(b"another"))
    raw = accused_world.packed(with_manifest(made, actual=other))
    found = await answer(raw, accused_world.LyingEngine(), tmp_path / "recheck")
    assert (found.result, "third answer" in found.reason) == ("unable", True)


def with_manifest(made: GatheredBundle, **changes: Any) -> GatheredBundle:
    return GatheredBundle(msgspec.structs.replace(made.manifest, **changes), made.sources)


async def test_bundle_adds_no_claims(accused: Any, accused_world: Any, tmp_path: Path) -> None:
    """Whatever a reporter changes, the answer is about what the accused signed, or there is none."""
    await accused.publish(2)
    made = await accused.gathered()
    mallory = SigningKey(b"m" * 32)
    said, _ = accused.head()
    forged, sealed = accused_world.signed_head(mallory, said.size, said.root_hash, said.head)
    envelope = msgspec.json.decode(sealed.envelope)
    with_forged = accused_world.packed(with_manifest(made, head=envelope))
    with pytest.raises(Invalid) as caught:
        await answer(with_forged, accused_world.LyingEngine(), tmp_path / "forged")
    assert caught.value.rule == "bundle-path" or caught.value.rule == "graft"
    other = [msgspec.structs.replace(each, path=(b"\0" * 32,) if each.path else None) for each in made.manifest.objects]
    assert refused(accused_world.packed(with_manifest(made, objects=tuple(other))), tmp_path / "path").rule == (
        "bundle-path"
    )
    assert forged.dataset == mallory.dataset_id


async def test_a_reporter_adds_nothing(accused: Any, accused_world: Any, tmp_path: Path) -> None:
    """Bytes that nothing signed names are no evidence, and nobody is made to keep and give them away."""
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
    """A reporter who could leave out the newest SetTransform could accuse an honest publisher."""
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
    found = await answer(
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
    """A step that reads too much is accused without a bundle; four are kept of a dataset, and the oldest goes."""
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

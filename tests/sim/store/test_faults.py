"""Faults of a store: the power fails at each sync of all that lasts, and seeded lives each meet one fault.

Each act runs on a disk that loses what was not synced (``worlds.power``). At every sync, and at the end, the folder is
made as it may be found afterwards: with all of the rest lost, with one changed name kept, and with parts of it kept, in
any order. Whatever the act had said to the outside by then (a signature, a receipt, an answer to a person) must be
found in it.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import tarfile
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from chain.errors import Environment, Refused
from chain.ids import DatasetId
from chain.instant import Instant
from chain.multihash import Multihash
from chain.statements import canonical, envelope, statement
from chain.statements.keys import SigningKey
from chain.statements.statement import Actual, HeadStatement
from chain.store import durable
from chain.store.collect import collect
from chain.store.objects import SMALL
from odfd.cli.new_file import NewFile
from odfd.daemon.init import init
from odfd.queries.projections import ProjectionStore, TableRecord
from odfd.repositories.files import Folder
from odfd.resources.resource import Resource
from odfd.resources.store import ResourceStore
from odfd.runtime.tasks import Report
from odfd.services.maintenance.backup import BackupFolder, snapshots_in
from odfd.services.maintenance.restore import choose, restore
from odfd.services.maintenance.upgrade import table_changes
from odfd.services.volumes.volume_paths import MARK, VolumeFolder
from odfd.store.directory import StateDirectory, open_state_directory
from odfd.store.keys import journal
from odfd.store.keys.keystore import KeyStore
from odfd.store.keys.secret_keys import SecretKeys
from odfd.store.spool import SMALL as SMALL_PUSH
from odfd.store.spool import PushSpool
from odfd.transfer.delta_log import LOG, write_log
from odfd.trust.evidence.bundle import BUNDLE, BundleManifest, Listed
from odfd.trust.evidence.bundle_store import BundleStore
from worlds import store_life
from worlds.power import PowerDisk

OLD: Final = Path(__file__).parents[2] / "golden" / "state" / "before-resources.tar.gz"
NOW: Final = Instant(10**18)
CHANCES: Final = 3
"""Folders that are made at each sync beside those in which all is lost, or all but one change of a name."""
LARGE: Final = bytes(range(256)) * (SMALL // 256 + 1)
Promises = list[Any]


class Act(NamedTuple):
    """Something that keeps data durably, in a folder."""

    do: Callable[[Path, Callable[[Any], None]], None]
    """Does it; calls the function with what is told to the outside."""
    look: Callable[[Path, Promises], None]
    """Opens the folder and asserts that everything that was promised is there."""


def keys_in(home: Path) -> KeyStore:
    lot = random.Random(5)
    return KeyStore(home / "state" / "keys", lot.randbytes)


def sign(home: Path, promise: Callable[[Any], None]) -> None:
    """Statements of two keys, with a journal that is made shorter now and then."""
    with open_state_directory(home / "state"):
        keys = keys_in(home)
        dataset = keys.new_dataset_key()
        keys.keep_dataset_key(dataset.dataset_id)
        for number in range(1, 13):
            for key in (keys.node_key(), dataset):
                subject = f"{number:064x}"
                keys.sign(key, "head", (0, number), subject, b"{}")
                promise((key.did, (0, number), subject))
            if number % 5 == 0:
                keys = keys_in(home)


def look_for_signatures(home: Path, promised: Promises) -> None:
    keys = keys_in(home)
    for key in {did for did, *_ in promised}:
        order, subject = max(found[1:] for found in promised if found[0] == key)
        last = keys.last_signed(key, "head")
        assert last is not None, "a signature that left the node is forgotten"
        assert (last.order, last.subject) >= (order, subject)
        with pytest.raises(Refused, match="has already signed"):
            keys.note(key, "head", order, "another")
    if promised:
        assert keys.list_lost() == []
        assert keys.check() >= 1


def make_keys(home: Path, promise: Callable[[Any], None]) -> None:
    keys = keys_in(home)
    kept, offline, gone = (keys.new_dataset_key() for _ in range(3))
    for key in (kept, offline, gone):
        promise(("new", key.dataset_id))
    for key in (kept, offline):
        keys.keep_dataset_key(key.dataset_id)
        promise(("kept", key.dataset_id))
    keys.take_offline(offline.dataset_id)
    promise(("offline", offline.dataset_id))
    keys.discard_dataset_key(gone.dataset_id)
    promise(("gone", gone.dataset_id))


def look_for_keys(home: Path, promised: Promises) -> None:
    keys = keys_in(home)
    said = {dataset: what for what, dataset in promised}
    unborn = keys.unborn()
    for file in (home / "state" / "keys").glob("fed*.key"):
        dataset = DatasetId.parse(f"did:odf:{file.stem}")
        assert dataset in said or dataset in unborn, "a key of nothing would stay for ever"
    for dataset, what in said.items():
        if what == "new":
            continue
        has_file = (home / "state" / "keys" / f"{dataset.multibase}.key").exists()
        assert keys.has_dataset_key(dataset) == (what != "gone")
        assert what == "gone" or dataset not in unborn
        if what == "offline" or dataset == promised[0][1]:
            assert has_file == (what == "kept"), f"{what}, and the key's file {'is' if has_file else 'is not'} there"
    keys.check()


def seal(home: Path, promise: Callable[[Any], None]) -> None:
    secrets = SecretKeys(home)
    promise(secrets.seal("one", "here"))
    secrets.begin_rotation()
    promise(secrets.seal("two", "here"))


def look_for_secrets(home: Path, promised: Promises) -> None:
    secrets = SecretKeys(home)
    assert [secrets.open(each, {"here"}).reveal() for each in promised] == ["one", "two"][: len(promised)]


def fill(home: StateDirectory, number: int) -> Multihash:
    home.keys.node_key()
    return home.objects.add_bytes(LARGE + bytes([number]))


def back_up(home: Path, promise: Callable[[Any], None]) -> None:
    with open_state_directory(home.with_name("backed-up")) as state:
        for number in range(3):
            name = fill(state, number)
            folder = BackupFolder(home / "to" / "backup", "this node")
            folder.add(state, Instant(NOW + number * 10**9), "1", 1, Report())
            promise(name)


def look_for_backup(home: Path, promised: Promises) -> None:
    backup = home / "to" / "backup"
    if promised:
        BackupFolder(backup, "this node")
        assert snapshots_in(backup), "no snapshot is there"
    if snapshots_in(backup) if backup.exists() else ():
        again = home.with_name(f"{home.name}-again")
        assert restore(choose(backup, None), again, lambda _: [], Report()).damaged == ()
        with open_state_directory(again) as state:
            assert all(state.objects.has(each) for each in promised)
        shutil.rmtree(again)


def bring_back(home: Path, promise: Callable[[Any], None]) -> None:
    backup = home.with_name("backup")
    with open_state_directory(home.with_name("backed-up")) as state:
        name = fill(state, 1)
        BackupFolder(backup, "this node").add(state, NOW, "1", 1, Report())
    restore(choose(backup, None), home / "again", lambda _: [], Report())
    promise(name)


def look_for_restored(home: Path, promised: Promises) -> None:
    again = home / "again"
    if promised or again.exists():
        with open_state_directory(again) as state:
            names = list(state.objects.names())
            assert set(promised) <= set(names)
            assert [len(state.objects.read(each)) for each in names] == [len(LARGE) + 1]
            assert state.keys.node_seed()


def take_over(home: Path, promise: Callable[[Any], None]) -> None:
    """The first start on a state of an older version."""
    with tarfile.open(OLD) as archive:
        archive.extractall(home / "state", filter="data")
    durable.sync_tree(home)
    with open_state_directory(home / "state") as state:
        promise([(each.name, state.chains.chain(each.id).head()) for each in state.entries()])


def look_for_upgrade(home: Path, promised: Promises) -> None:
    if not promised:
        return
    assert table_changes(home / "state") == [], "what was told of is an older state again"
    with open_state_directory(home / "state") as state:
        assert [(each.name, state.chains.chain(each.id).head()) for each in state.entries()] == promised[0]
    assert len(promised[0]) == 5


def accuse(home: Path, promise: Callable[[Any], None]) -> None:
    key = SigningKey(bytes(32))
    said = HeadStatement(
        dataset=key.dataset_id, epoch=0, size=2, root_hash=bytes(32), authority=0, issued_at=statement.when(NOW),
        expires_at=statement.when(Instant(NOW + 10**15)), head=Multihash.sha3_256(b"head"),
    )  # fmt: skip
    head: Any = canonical.decode(envelope.seal(statement.encode(said), key))
    store = BundleStore(home)
    for number in range(3):
        raw = bytes([number]) * 3000
        manifest = BundleManifest(
            type=BUNDLE, head=head, sequence_number=1, actual=Actual(records=number),
            objects=(Listed(hash=Multihash.sha3_256(raw), size=len(raw)),),
        )  # fmt: skip
        name = store.keep(manifest, {Multihash.sha3_256(raw): raw})
        promise((name, store.path(name).read_bytes()))


def look_for_evidence(home: Path, promised: Promises) -> None:
    store = BundleStore(home)
    for name, raw in promised:
        assert store.path(name).read_bytes() == raw


def push(home: Path, promise: Callable[[Any], None]) -> None:
    with open_state_directory(home / "state") as state:
        with state.database.write() as connection:
            for each in ("one", "two"):
                source = Resource(id=each, type="Source", name=each, spec={}, created_at=NOW, updated_at=NOW)
                ResourceStore(connection).put(source, NOW)
        for number in range(6):
            size = SMALL_PUSH + 1 if number % 2 else 10
            place = "one" if number < 3 else "two"
            data = bytes([number]) * size
            assert state.spool.add(place, data, 1, NOW, None).durable
            promise((place, data))


def look_for_pushes(home: Path, promised: Promises) -> None:
    with open_state_directory(home / "state") as state:
        spool: PushSpool = state.spool
        for source in ("one", "two"):
            found = [each.path.read_bytes() for each in spool.after(source, 0, 99, 1 << 30)[0]]
            wanted = [data for place, data in promised if place == source]
            assert found[: len(wanted)] == wanted, "a push that was acknowledged is lost"
            assert len(found) <= len(wanted) + 1


def move(home: Path, promise: Callable[[Any], None]) -> None:
    source = home.with_name("slice")
    source.write_bytes(LARGE)
    name = Multihash.sha3_256(LARGE)
    place = VolumeFolder("v", home / "mounted" / "volume")
    place.claim("v", is_new=True)
    promise("claimed")
    place.put(name, source)
    promise(name)
    place.release("v")
    promise("released")


def look_for_slices(home: Path, promised: Promises) -> None:
    place = VolumeFolder("v", home / "mounted" / "volume")
    if promised[-1:] == ["released"]:
        assert not (home / "mounted" / "volume" / MARK).exists(), "nobody else could use the place"
    elif promised == ["claimed"]:
        place.claim("v", is_new=False)
    else:
        with suppress(Environment):  # it may be released already
            place.claim("v", is_new=not promised)
    if len(promised) == 2 and (home / "mounted" / "volume" / MARK).exists():
        assert place.is_whole(promised[1])


def put(home: Path, promise: Callable[[Any], None]) -> None:
    folder = Folder("repository", home / "far" / "away")
    for number in range(3):
        folder.put(f"one/data/{number}", bytes([number]) * 2000)
        promise((f"one/data/{number}", bytes([number]) * 2000))
        tag = folder.get("one/refs/head", 100)
        assert folder.put_if("one/refs/head", b"%d" % number, tag.tag if tag else None)
        promise(("one/refs/head", b"%d" % number))


def look_for_files(home: Path, promised: Promises) -> None:
    folder = Folder("repository", home / "far" / "away")
    for path, content in dict(promised).items():
        found = folder.get(path, 1 << 20)
        assert found is not None
        assert found.content == content or (path.endswith("head") and found.content == b"%d" % (int(content) + 1))


def keep_table(home: Path, promise: Callable[[Any], None]) -> None:
    store = ProjectionStore(home)
    for number in range(3):
        part = store.part("id")
        part.write_bytes(bytes([number]) * 3000)
        record = TableRecord(
            spec="s",
            inputs=(),
            schema=b"",
            rows=number,
            size=3000,
            content=hashlib.sha256(part.read_bytes()).hexdigest(),
            at=NOW,
        )
        store.keep("id", part, record)
        promise(number)


def look_for_table(home: Path, promised: Promises) -> None:
    record = ProjectionStore(home).find("id")
    if promised:
        assert record is not None
        assert record.rows in (promised[-1], promised[-1] + 1)
    if record is not None:
        assert (home / f"id.{record.content}.parquet").read_bytes() == bytes([record.rows]) * 3000


def configure(home: Path, promise: Callable[[Any], None]) -> None:
    file = home / "etc" / "odfd" / "odfd.toml"
    init({"HOME": str(home)}, file, {"node.name": "one"}, (), ask=False)
    promise(file.read_text())


def look_for_settings(home: Path, promised: Promises) -> None:
    file = home / "etc" / "odfd" / "odfd.toml"
    if promised or file.exists():
        text = file.read_text()
        assert 'name = "one"' in text
        assert promised in ([], [text])


def write_secret(home: Path, promise: Callable[[Any], None]) -> None:
    NewFile(home / "secret", is_private=True).write("a key")
    promise("a key")


def look_for_secret(home: Path, promised: Promises) -> None:
    if promised or (home / "secret").exists():
        assert (home / "secret").read_text() == "a key"


def write_delta(home: Path, promise: Callable[[Any], None]) -> None:
    with store_life.opened(home.with_name("store")) as store:
        for number in range(3):
            store_life.append_slices(store, store_life.TABLE, random.Random(number), Instant((number + 1) * 10**12))
            chain = store.chains.chain(store_life.TABLE)
            head = chain.head()
            assert head is not None
            promise(write_log(home / "table", store_life.TABLE, "one", chain, head))


def look_for_versions(home: Path, promised: Promises) -> None:
    log = home / "table" / LOG
    files = sorted(log.glob("[0-9]*.json")) if log.exists() else []
    assert len(files) in (len(promised), len(promised) + 1)
    for number, file in enumerate(files):
        assert int(file.stem) == number
        assert "commitInfo" in json.loads(file.read_text().splitlines()[-1])


def digest_of(folder: Path) -> str:
    """Of all that a folder has: names, and what is in files."""
    files = sorted(folder.rglob("*")) if folder.exists() else []
    parts = [(str(each.relative_to(folder)), each.read_bytes() if each.is_file() else None) for each in files]
    return hashlib.sha256(repr(parts).encode()).hexdigest()


ACTS: Final = {
    "signing": Act(sign, look_for_signatures),
    "keys": Act(make_keys, look_for_keys),
    "secrets": Act(seal, look_for_secrets),
    "backup": Act(back_up, look_for_backup),
    "restore": Act(bring_back, look_for_restored),
    "upgrade": Act(take_over, look_for_upgrade),
    "evidence": Act(accuse, look_for_evidence),
    "pushes": Act(push, look_for_pushes),
    "volumes": Act(move, look_for_slices),
    "repository": Act(put, look_for_files),
    "projections": Act(keep_table, look_for_table),
    "settings": Act(configure, look_for_settings),
    "private-files": Act(write_secret, look_for_secret),
    "delta": Act(write_delta, look_for_versions),
}


@pytest.mark.slow
@pytest.mark.parametrize("act", ACTS)
def test_what_was_promised_is_there_whenever_the_power_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    """Attack T-DISK-02: a power failure, after which a disk lacks, reorders or tears what was not synced.

    Defence: all that must last is written through one module that syncs bytes and names; what was promised is there at
    each point.
    """
    monkeypatch.setattr(journal, "COMPACT_AT", 600)
    home = tmp_path / "home"
    home.mkdir()
    lot, promised = random.Random(act), list[Any]()
    images: list[tuple[Path, list[Any]]] = []

    def fail() -> None:
        for alone in (frozenset(), *disk.changes()):
            images.append((disk.image(tmp_path / f"{len(images)}", alone=alone), list(promised)))
        for _ in range(CHANCES):
            images.append((disk.image(tmp_path / f"{len(images)}", lot), list(promised)))

    def promise(what: Any) -> None:
        promised.append(what)
        fail()

    disk = PowerDisk(home, fail)
    with disk.watching():
        ACTS[act].do(home, promise)
        fail()
    disk.close()
    looked_at = set[tuple[str, int]]()
    for image, by_then in images:
        known = (digest_of(image), len(by_then))
        if known in looked_at:
            continue  # what is the same at two syncs is looked at once
        looked_at.add(known)
        try:
            ACTS[act].look(image, by_then)
        except Exception as error:
            error.add_note(f"the power failed after {len(by_then)} of {len(promised)} promises: {image}")
            raise
        shutil.rmtree(image)
    assert len(promised) >= 1
    assert disk.syncs >= len(promised), "nothing waited for the disk"


# Seeded lives of a store, each with one fault: killed, power or disk failed, full, cut short, unreadable.
# Whatever happened, the store reopens in the state before or after the operation that was hit, everything in it is
# whole, nothing staged is left, and the rest of the program runs to the same end as if nothing had been.
# ODF_FAULT_RUNS=5000 makes it a long run.

RUNS = int(os.environ.get("ODF_FAULT_RUNS", "36"))
SEED = 7
"""A life that comes through most steps."""
REPORT = os.environ.get("ODF_FAULT_REPORT")
"""A folder for what was hit how often, when a long run wants to tell."""


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders that the lives import from."""
    return store_life.make_sources(tmp_path_factory.mktemp("sources"))


@pytest.mark.slow
@pytest.mark.parametrize("way", store_life.WAYS)
def test_a_fault_anywhere_leaves_the_old_state_or_the_new(way: str, tmp_path: Path, sources: Path) -> None:
    """Attack T-DISK-02: a kill, a full, failing or unreadable disk, or a partial write, at any durable step.

    Defence: objects are durable before the head that names them; one transaction moves the head; staged data is
    discarded.
    """
    ends: Counter[str] = Counter()
    for seed in range(store_life.WAYS.index(way), RUNS, len(store_life.WAYS)):
        program = store_life.Program(seed, sources)
        states, steps = store_life.run_well(tmp_path / "well", program)
        lot = random.Random(seed)
        at = lot.randrange(1, len(steps) + 1)
        directory = tmp_path / "hit"
        code, words = store_life.run_in_child(directory, program, way, at)
        story = f"seed {seed}: {way} at step {at} ({steps[at - 1]}), ended with {code} after {words}"
        assert code in (0, store_life.KILLED, store_life.FAILED), story
        done = words.count(".")
        with store_life.opened(directory) as store:
            now = store.state()
            assert now in states[done : done + 2], story
            store_life.check_whole(store)
            for number in range(done if now == states[done] else done + 1, store_life.OPERATIONS):
                program.operate(store, number)
            assert store.state() == states[-1], story
            store_life.check_whole(store)
        with store_life.opened(directory) as store:
            collect(store.chains, store.objects)
            assert collect(store.chains, store.objects, dry_run=True).objects == 0, story
            store_life.check_whole(store)
        ends[f"{way} {steps[at - 1]} {'met' if code or '!' in words else 'passed'}"] += 1
        for folder in ("well", "hit"):
            shutil.rmtree(tmp_path / folder)
    assert any(end.endswith("met") for end in ends), "no life met a fault"
    if REPORT:
        (Path(REPORT) / f"{way}.json").write_text(json.dumps(ends))


@pytest.mark.slow
def test_whenever_the_power_fails_the_old_state_is_there_or_the_new(tmp_path: Path, sources: Path) -> None:
    """At each step of one life, with all lost that was not synced, and with some of it kept."""
    program, lot = store_life.Program(SEED, sources), random.Random(SEED)
    states, steps = store_life.run_well(tmp_path / "well", program)
    directory = tmp_path / "hit"
    directory.mkdir()
    disk, seen = PowerDisk(directory), 0
    found: list[tuple[str, Path]] = []

    def step(name: str) -> None:
        found.extend((name, disk.image(tmp_path / f"{len(found)}-{way}", way)) for way in (None, lot))

    for number in range(store_life.OPERATIONS):
        with disk.watching(), store_life.opened(directory, step) as store:
            program.operate(store, number, step)
            step("done")
            least = len(found) - 2
        step("closed")
        for place, (name, image) in enumerate(found):
            with store_life.opened(image) as store:
                story = f"power lost at {name} of operation {number}"
                assert store.state() in states[number + (place >= least) : number + 2], story
                store_life.check_whole(store)
            shutil.rmtree(image)
        seen += len(found)
        found.clear()
    disk.close()
    assert seen >= 2 * len(steps), "the power did not fail at each step"

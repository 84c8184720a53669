"""Volumes: slices move there and back, and mounts that hang hold one thread."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, cast

import msgspec
import pytest

from chain.errors import Environment, Fault
from chain.ids import DatasetId
from chain.instant import Instant
from chain.model.events import AddData, DatasetKind, DataSlice, OffsetInterval, Seed
from chain.multihash import Multihash
from chain.store.base import Append, no_step
from chain.store.collect import collect
from odfd.resources.resource import Resource, handle_of
from odfd.resources.sets import binding
from odfd.resources.store import ResourceStore
from odfd.services.volumes.cache import OPENING_SECONDS, VolumeCache
from odfd.services.volumes.mount_check import MountCheck
from odfd.services.volumes.mover import VolumeMover, VolumeState
from odfd.services.volumes.volume_paths import MARK, VolumeFolder
from odfd.services.volumes.volumes import Volumes
from odfd.services.volumes.worker import VolumeController
from odfd.store.catalog import Catalog
from odfd.store.directory import StateDirectory
from worlds.chains import following
from worlds.eventually import until
from worlds.faults import breaks
from worlds.node_world import opened
from worlds.s3_server import new_bucket, s3_server

# A mount that hangs holds one thread, whoever asks it how often, and answers again when it is back.

NAME = Multihash.sha3_256(b"slice")


class Mount:
    """Answers, unless it hangs."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.asked = 0

    def ask(self) -> bool:
        self.asked += 1
        self.answers.wait()
        return True


@pytest.fixture
def mount() -> Iterator[Mount]:
    mount = Mount()
    yield mount
    mount.answers.set()


def test_one_thread_waits_for_a_mount_that_hangs(mount: Mount) -> None:
    check = MountCheck(mount.ask, patience=0.01)
    before = threading.active_count()
    for _ in range(20):
        with pytest.raises(TimeoutError):
            check()
    assert (mount.asked, threading.active_count() - before) == (1, 1)
    mount.answers.set()
    assert MountCheck(mount.ask)()

    def is_there() -> bool:
        try:
            return check()
        except TimeoutError:  # the thread that hung has not said so yet, or a new one did not run in so short a time
            return False

    until(is_there)


def test_callers_share_an_answer(mount: Mount) -> None:
    check, found = MountCheck(mount.ask, patience=60.0), list[bool]()
    callers = [threading.Thread(target=lambda: found.append(check())) for _ in range(8)]
    for each in callers:
        each.start()
    mount.answers.set()
    for each in callers:
        each.join()
    assert found == [True] * 8
    assert mount.asked <= 8


def test_what_the_question_raises_is_raised(tmp_path: Path) -> None:
    def ask() -> bool:
        raise PermissionError(13, "no", str(tmp_path))

    with pytest.raises(PermissionError):
        MountCheck(ask)()


def test_a_volume_on_such_a_mount_is_away(mount: Mount, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = VolumeFolder("disk", tmp_path / "v", patience=0.01)
    place.claim("id", is_new=True)
    monkeypatch.setattr(place, "_is_marked", MountCheck(mount.ask, 0.01))
    (tmp_path / "slice").write_bytes(b"slice")
    for ask in (
        lambda: place.file(NAME), lambda: place.put(NAME, tmp_path / "slice"), lambda: place.is_whole(NAME),
        lambda: place.delete(NAME), lambda: place.claim("id", is_new=False), lambda: place.release("v"),
    ):  # fmt: skip
        with breaks("volume-away", Environment, match="does not answer: check its server"):
            ask()
    assert (tmp_path / "v" / MARK).is_file()


# Slices move to volumes and back: whole at each point where a crash may end it, under readers, and never by guess.

OWNER: Final = DatasetId.from_public_key(bytes(32))
AT: Final = Instant(10**15)
CONTENTS: Final = tuple(bytes([number]) * (70_000 + number) for number in range(3))
LABELS: Final = attrgetter("labels")
NAMES: Final = tuple(map(Multihash.sha3_256, CONTENTS))
STEPS: Final = (
    *("volume-begun", "volume-copied", "volume-switched", "volume-alone"),
    *("volume-returned", "volume-left", "volume-cleared"),
)


class Crash(BaseException):
    """The process ends."""


def write(home: StateDirectory) -> None:
    """A dataset ``cold`` with three slices."""
    last = following(None, _seed(), AT)
    blocks = [last]
    for number, content in enumerate(CONTENTS):
        name = home.objects.add_bytes(content)
        new = DataSlice(
            logical_hash=name,
            physical_hash=name,
            offset_interval=OffsetInterval(start=number, end=number),
            size=len(content),
        )
        before = number - 1 if number else None
        last = following(last, AddData(prev_offset=before, new_data=new, new_watermark=Instant(10**6)), AT)
        blocks.append(last)

    def name_it(connection: Any) -> None:
        Catalog(connection).add("cold", OWNER, AT)

    home.chains.commit([Append(dataset=OWNER, expected=None, blocks=blocks, objects=NAMES)], name_it)


def _seed() -> Seed:
    return Seed(dataset_id=OWNER, dataset_kind=DatasetKind.ROOT)


def declare(home: StateDirectory, spec: dict[str, Any], datasets: Sequence[str] = ("c%",), **more: Any) -> Resource:
    """The volume as it is declared from now on."""
    volume = Resource(
        id="3b1f7f7e-0000-4000-8000-000000000001", type="PersistentVolume", name="cellar", spec=spec,
        annotations={"volumePolicy": {"datasets": list(datasets)} | more}, created_at=AT, updated_at=AT,
    )  # fmt: skip
    with home.database.write() as connection:
        ResourceStore(connection).put_all([volume], AT)
    return volume


def moved(home: StateDirectory, volume: Resource, step: Any = no_step) -> tuple[VolumeState, Volumes]:
    """After a round of a process that just started."""
    volumes = Volumes(home)
    return VolumeMover(home, volumes, LABELS, step).round(0, [volume], None), volumes


def all_are_whole(home: StateDirectory) -> bool:
    return all(home.objects.path(name).read_bytes() == content for name, content in zip(NAMES, CONTENTS, strict=True))


def local(home: StateDirectory) -> int:
    return sum(home.objects.local_file(name) is not None for name in NAMES)


@pytest.fixture
def disk(tmp_path: Path) -> dict[str, Any]:
    return {"kind": "HostPath", "path": str(tmp_path / "disk")}


@contextmanager
def filled(tmp_path: Path) -> Iterator[StateDirectory]:
    with opened(tmp_path / "state") as home:
        write(home)
        yield home


@pytest.fixture
def home(tmp_path: Path) -> Iterator[StateDirectory]:
    with filled(tmp_path) as filled_home:
        yield filled_home


def test_slices_lie_in_a_volume_and_are_read_as_ever(home: StateDirectory, disk: dict[str, Any]) -> None:
    state, _ = moved(home, declare(home, disk))
    assert (state.fault, state.moved, state.waiting, local(home)) == (None, 3, 0, 0)
    assert all_are_whole(home)
    assert home.objects.missing(NAMES) == []
    assert [home.objects.size(name) for name in NAMES] == [len(each) for each in CONTENTS]
    assert home.objects.read(NAMES[1], 5, 7) == CONTENTS[1][5:12]
    assert sorted(home.objects.names()) == sorted(NAMES)
    assert sum(1 for each in Path(disk["path"]).rglob("f*") if each.is_file()) == 3
    again, _ = moved(home, declare(home, disk))
    assert again.moved == 0


@pytest.mark.parametrize("crash", range(1, 12))
@pytest.mark.parametrize("way", ["there", "back"])
def test_a_crash_at_any_point_leaves_each_slice_whole(
    tmp_path: Path, disk: dict[str, Any], crash: int, way: str
) -> None:
    reached: list[str] = []

    def step(name: str) -> None:
        reached.append(name)
        if len(reached) == crash:
            raise Crash

    with filled(tmp_path) as home:
        if way == "back":
            moved(home, declare(home, disk))
        volume = declare(home, disk, ("c%",) if way == "there" else ())
        try:
            moved(home, volume, step)
        except Crash:
            assert reached[-1] in STEPS
    with opened(tmp_path / "state") as home:
        volumes = Volumes(home)
        assert all_are_whole(home), reached
        home.objects.holds.next_collection()
        home.objects.holds.next_collection()
        state = VolumeMover(home, volumes, LABELS).round(0, [volume], None)
        assert (state.fault, state.waiting, all_are_whole(home)) == (None, 0, True)
        assert local(home) == (0 if way == "there" else 3)
        usage = home.objects.volumes.usage(volume.id)
        assert (usage.objects, usage.remains) == ((3, 0) if way == "there" else (0, 0))
        copies = [each for each in Path(disk["path"]).rglob("*") if each.is_file() and each.name != MARK]
        assert len(copies) == usage.objects, "nothing is left over"


def test_what_somebody_may_be_reading_stays_until_it_is_given_back(home: StateDirectory, disk: dict[str, Any]) -> None:
    lent = home.objects.path(NAMES[0])
    with lent.open("rb") as reader, home.objects.holds.hold(NAMES[1:2]):
        volumes = Volumes(home)
        mover, volume = VolumeMover(home, volumes, LABELS), declare(home, disk)
        state = mover.round(0, [volume], None)
        assert (state.moved, state.waiting, local(home)) == (1, 2, 2)
        assert lent.is_file()
        assert reader.read() == CONTENTS[0]
    home.objects.holds.next_collection()
    home.objects.holds.next_collection()
    state = mover.round(0, [volume], ())
    assert (state.moved, state.waiting, local(home)) == (2, 0, 0)
    assert all_are_whole(home)


def test_a_volume_that_is_away_fails_reads_by_name_and_nothing_else(home: StateDirectory, disk: dict[str, Any]) -> None:
    volume = declare(home, disk)
    moved(home, volume)
    kept = Path(disk["path"]).rename(Path(disk["path"]).with_name("unplugged"))
    Path(disk["path"]).mkdir()
    mine = home.objects.add_bytes(bytes(80_000))
    state, _ = moved(home, volume)
    assert isinstance(state.fault, Environment)
    assert (state.fault.rule, "cellar" in str(state.fault)) == ("volume-away", True)
    with breaks("volume-away", Environment, match="volume cellar is away"):
        home.objects.path(NAMES[0])
    assert home.objects.has(NAMES[0])
    assert home.objects.path(mine).stat().st_size == 80_000
    assert list(Path(disk["path"]).iterdir()) == [], "an unmounted folder is not filled"
    Path(disk["path"]).rmdir()
    kept.rename(disk["path"])
    assert moved(home, volume)[0].fault is None
    assert all_are_whole(home)


def test_labels_select_what_is_moved_to_a_volume(home: StateDirectory, disk: dict[str, Any]) -> None:
    volume, mover = declare(home, disk, ("c% env=prod",)), VolumeMover(home, Volumes(home), LABELS)
    assert mover.round(0, [volume], None).moved == 0
    with home.database.write() as connection:
        store = ResourceStore(connection)
        held = store.with_did("Dataset", str(OWNER))
        assert held is not None
        store.put(msgspec.structs.replace(held, labels={"env": "prod"}), AT)
    assert mover.round(0, [volume], {OWNER}).moved == len(NAMES)


def test_copies_that_somebody_may_be_reading_are_counted_until_they_go(
    home: StateDirectory, disk: dict[str, Any]
) -> None:
    _, volumes = moved(home, declare(home, disk))
    assert all_are_whole(home), "paths were handed out"
    back = declare(home, disk, ())
    mover = VolumeMover(home, volumes, LABELS)
    state = mover.round(0, [back], None)
    assert (state.returned, state.waiting, state.remaining) == (3, 0, 3)
    home.objects.holds.next_collection()
    home.objects.holds.next_collection()
    state = mover.round(0, [back], None)
    assert (state.returned, state.waiting, state.remaining) == (0, 0, 0)


@pytest.mark.parametrize("datasets", [("cold",), ()])
def test_an_unmounted_disk_is_not_taken_for_a_new_one_after_a_restart(
    home: StateDirectory, disk: dict[str, Any], datasets: Sequence[str]
) -> None:
    """Attack T-DISK-02: a volume whose disk is not mounted, also after a restart and before it contains a slice.

    Defence: a folder has a mark with the volume's id, and the database stores the marked place: a marked place without
    its mark is unavailable, and nothing is written below it.

    Also where no slice lies in it yet, and the folder below the disk is there.
    """
    volume = declare(home, disk, datasets=())
    assert moved(home, volume)[0].fault is None
    root = Path(disk["path"])
    root.rename(root.with_name("unplugged"))
    root.mkdir()
    state, _ = moved(home, declare(home, disk, datasets=datasets))
    assert state.fault is not None
    assert state.fault.rule == "volume-away"
    assert list(root.iterdir()) == []
    assert local(home) == 3


def test_an_empty_volume_may_begin_elsewhere_and_leaves_its_place_to_another(
    home: StateDirectory, disk: dict[str, Any]
) -> None:
    moved(home, declare(home, disk, datasets=()))
    other = disk | {"path": f"{disk['path']}-2"}
    assert moved(home, declare(home, other))[0].fault is None
    assert local(home) == 0
    assert not (Path(disk["path"]) / MARK).exists()


def test_the_mark_of_a_deleted_volume_goes_when_its_disk_is_back(home: StateDirectory, disk: dict[str, Any]) -> None:
    volume = declare(home, disk, datasets=())
    assert moved(home, volume)[0].fault is None
    root = Path(disk["path"])
    unplugged = root.rename(root.with_name("unplugged"))
    for below in (None, root.mkdir, root.rmdir, root.touch):  # whatever is there of it
        if below is not None:
            below()
        with pytest.raises(Environment, match="is away") as told:
            Volumes(home).release(volume)
        assert told.value.rule == "volume-away"
    root.unlink()
    unplugged.rename(root)
    Volumes(home).release(volume)
    assert not (root / MARK).exists()
    Volumes(home).release(volume)  # after a crash, before anything noted that it is done


def test_a_volume_that_never_began_is_deleted_without_its_disk(home: StateDirectory, disk: dict[str, Any]) -> None:
    Volumes(home).release(declare(home, disk, datasets=()))


def test_a_crash_while_a_volume_is_deleted_leaves_no_mark(
    home: StateDirectory, disk: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    volume = declare(home, disk, datasets=())
    moved(home, volume)
    for at in ("unclaim", "release"):
        with monkeypatch.context() as patched:
            owner: Any = home.objects.volumes if at == "unclaim" else VolumeFolder
            patched.setattr(owner, at, _crash)
            with pytest.raises(Crash):
                Volumes(home).release(volume)
    Volumes(home).release(volume)
    assert not (Path(disk["path"]) / MARK).exists()


def _crash(*_: object) -> None:
    raise Crash


def test_a_mark_that_a_crash_cut_off_is_written_anew(home: StateDirectory, disk: dict[str, Any]) -> None:
    root = Path(disk["path"])
    root.mkdir()
    (root / f"{MARK}.part").write_text("3b1f")
    assert moved(home, declare(home, disk))[0].fault is None
    assert sorted(each.name for each in root.iterdir() if each.is_file()) == [MARK]


def test_a_full_volume_takes_no_more_and_says_so(home: StateDirectory, disk: dict[str, Any]) -> None:
    state, _ = moved(home, declare(home, disk | {"capacity": {"storage": "150kB"}}))
    assert state.fault is not None
    assert (state.fault.rule, home.objects.volumes.usage(declare(home, disk).id).objects) == ("volume-full", 2)
    assert all_are_whole(home)


def test_a_damaged_copy_does_not_replace_what_is_here(home: StateDirectory, disk: dict[str, Any]) -> None:
    """Attack T-DISK-01: a damaged or exchanged copy in a volume.

    Defence: it is hashed when it is written, fetched from a bucket, or moved back; a folder's file is hashed like local
    ones.

    What is fetched anew after damage is moved again, over the damaged copy.
    """
    volume = declare(home, disk)
    moved(home, volume)
    copy = home.objects.path(NAMES[0])
    copy.chmod(0o644)
    copy.write_bytes(b"rot" * 30_000)
    back = declare(home, disk, ())
    state, _ = moved(home, back)
    assert state.fault is not None
    assert state.fault.rule == "stored-object-damaged"
    assert home.objects.volumes.find(NAMES[0]) is not None, "the copy stays for who mends it"
    assert home.objects.add_bytes(CONTENTS[0]) == NAMES[0]
    home.objects.holds.named(NAMES)
    home.objects.holds.next_collection()
    home.objects.holds.next_collection()
    state, _ = moved(home, volume)
    assert (state.fault, local(home), all_are_whole(home)) == (None, 0, True)


def test_the_collection_frees_what_nothing_names_in_volumes_too(home: StateDirectory, disk: dict[str, Any]) -> None:
    volume = declare(home, disk)
    moved(home, volume)

    def unname(connection: Any) -> None:
        Catalog(connection).remove(Catalog(connection).resolve("cold"), AT)

    controller = VolumeController(home, cast("Any", None))
    with breaks("volume-in-use"):
        controller.check(volume, None)
    home.chains.drop(OWNER, unname)
    for _ in range(3):
        collect(home.chains, home.objects)
    assert home.objects.volumes.usage(volume.id) == (0, 0, 3)
    moved(home, volume)
    assert home.objects.volumes.usage(volume.id) == (0, 0, 0)
    assert [each.name for each in Path(disk["path"]).rglob("*") if each.is_file()] == [MARK]
    controller.check(volume, None)


def test_a_folder_that_holds_something_else_is_not_taken(home: StateDirectory, disk: dict[str, Any]) -> None:
    """Attack T-DISK-02: two nodes, or two volumes, at one place, where each would delete what the other needs.

    Defence: the mark names one volume; another is refused (`volume-taken`).
    """
    (Path(disk["path"])).mkdir()
    (Path(disk["path"]) / "letters").write_text("mine")
    state, _ = moved(home, declare(home, disk))
    assert state.fault is not None
    assert (state.fault.rule, local(home)) == ("volume-taken", 3)
    shutil.rmtree(disk["path"])
    moved(home, declare(home, disk))
    other = msgspec.structs.replace(declare(home, disk), id="3b1f7f7e-0000-4000-8000-000000000002", name="second")
    assert (moved(home, other)[0].fault or Fault("")).rule == "volume-taken"


@pytest.mark.slow
def test_a_bucket_holds_slices_and_a_bounded_cache_reads_them(home: StateDirectory) -> None:
    class Sealed:
        def __init__(self, text: str) -> None:
            self._text = text

        def reveal(self) -> str:
            return self._text

    with s3_server() as server:
        new_bucket(server, "cellar")
        secrets_id = "3b1f7f7e-0000-4000-8000-000000000009"
        sealed = {
            key: {"value": home.secrets.seal(f"k{key}", binding(secrets_id, key)), "contentEncoding": "jwe"}
            for key in ("id", "key")
        }
        keys = Resource(
            id=secrets_id, type="SecretSet", name="aws", spec={"secrets": sealed}, created_at=AT, updated_at=AT
        )
        spec = {
            "kind": "S3", "bucket": "cellar", "endpoint": server, "prefix": "odf",
            "credentials": {"accessKey": "SecretSet:aws#id", "secretKey": "SecretSet:aws#key"},
        }  # fmt: skip
        volume = declare(home, spec, cache="150kB")
        with home.database.write() as connection:
            volume = msgspec.structs.replace(volume, references={"SecretSet:aws": handle_of(keys)})
            ResourceStore(connection).put_all([keys, volume], AT)
        now = [0.0]
        volumes = Volumes(home, lambda: now[0])
        state = VolumeMover(home, volumes, LABELS).round(0, [volume], None)
        assert (state.fault, state.moved, local(home)) == (None, 3, 0)
        first = home.objects.path(NAMES[0])
        assert first.read_bytes() == CONTENTS[0]
        assert (home.objects.path(NAMES[0]), volumes.fetched) == (first, len(CONTENTS[0])), "fetched once"
        home.objects.path(NAMES[1])
        with breaks("volume-cache-full", Environment):
            home.objects.path(NAMES[2])
        now[0] += OPENING_SECONDS
        with home.objects.holds.hold(NAMES[:1]):
            assert home.objects.path(NAMES[2]).read_bytes() == CONTENTS[2]
            assert first.is_file(), "a reader holds it"
        assert volumes.cached_bytes() <= 150_000
        volumes.open(volume).place._bucket.put(str(NAMES[1]), b"rot" * 30_000)  # type: ignore[attr-defined]
        now[0] += OPENING_SECONDS
        with breaks("stored-object-damaged", Environment):
            home.objects.path(NAMES[1])
        volumes.open(volume).place._bucket.put(str(NAMES[1]), CONTENTS[1])  # type: ignore[attr-defined]
        back = msgspec.structs.replace(volume, annotations={})
        home.objects.holds.next_collection()
        home.objects.holds.next_collection()
        state = VolumeMover(home, volumes, LABELS).round(0, [back], None)
        assert (state.fault, state.returned, local(home)) == (None, 3, 3)
        assert home.objects.volumes.usage(volume.id) == (0, 0, 0)


def test_a_cache_that_is_opened_again_has_what_it_had(tmp_path: Path) -> None:
    name, part = NAMES[0], tmp_path / "staged"
    part.write_bytes(CONTENTS[0])
    VolumeCache(tmp_path / "cache", 100_000, lambda _: False, lambda: 0.0).keep(name, part, len(CONTENTS[0]))
    (tmp_path / "cache" / "1.part").write_bytes(b"cut off")
    again = VolumeCache(tmp_path / "cache", 100_000, lambda _: False, lambda: 0.0)
    found = again.find(name)
    assert found is not None
    assert found.read_bytes() == CONTENTS[0]
    assert sorted(each.name for each in found.parent.iterdir()) == [str(name)]

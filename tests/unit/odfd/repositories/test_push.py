"""Pushing: the same in a folder, in memory and on servers; cut off anywhere, and against another pusher."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import obstore
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from obstore.store import MemoryStore

from chain.errors import Conflict, Invalid, Refused, Remote
from chain.ids import DatasetId
from chain.store.database import open_database
from chain.store.layout import DirectoryChain, DirectoryObjects, read_head
from chain.store.objects import DiskObjects
from chain.store.sqlite import SqliteChains
from odfd.published.signed import SignedState
from odfd.repositories import bucket, push, sftp
from odfd.repositories.bucket import Bucket, open_bucket
from odfd.repositories.files import RepositoryFiles
from odfd.repositories.manifest import place_of
from odfd.repositories.sftp import PROBE, STAGED, SftpFiles, open_sftp
from odfd.runtime import buckets
from odfd.transfer.folders import Missing, Transfer, export_dataset, import_dataset
from odfd.verify.verify import VerificationRequest, verify_chain
from p2p.ports import FileMissing
from worlds.azurite import KEY as azurite_key
from worlds.azurite import azurite_served, new_container
from worlds.depth import share
from worlds.google import Cloud, google_served, service_account
from worlds.s3_server import new_bucket, s3_server
from worlds.sftp import PASSWORD, Served, sftp_served

GOLDEN = Path(__file__).parents[3] / "golden" / "kamu"
SECRET = "s3cr3t-of-the-house"
OPEN = {"accessKeyId": "AKIAHOUSE", "secretAccessKey": SECRET}
SIZE = len(list((GOLDEN / "flights" / "blocks").iterdir()))


class Store(NamedTuple):
    chains: SqliteChains
    objects: DiskObjects

    def take(self, size: int = SIZE) -> DatasetId:
        """The flights, as they were when they had so many blocks."""
        copy = self.objects._directory.parent / f"copy-{size}"
        shutil.copytree(GOLDEN / "flights", copy, dirs_exist_ok=True)
        (copy / "refs" / "head").write_text(str(DirectoryChain(GOLDEN / "flights").block_at(size - 1).hash))
        return import_dataset(copy, self.chains, self.objects).dataset


@contextmanager
def made(folder: Path) -> Iterator[Store]:
    folder.mkdir(parents=True)
    database = open_database(folder / "odfd.sqlite")
    objects = DiskObjects(folder / "objects", database)
    yield Store(SqliteChains(database, objects), objects)
    database.close()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with made(tmp_path / "state") as opened:
        yield opened


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Store]:
    with made(tmp_path / "other") as opened:
        yield opened


class Repository(Protocol):
    """What pushes go to."""

    def push(self, store: Store, dataset: DatasetId, meanwhile: Callable[[], None] = ...) -> Transfer: ...
    def tree(self, folder: Path) -> Path: ...


class InFolder:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def push(self, store: Store, dataset: DatasetId, meanwhile: Callable[[], None] = lambda: None) -> Transfer:
        return export_dataset(store.chains, store.objects, dataset, self.folder, lambda _: meanwhile())

    def tree(self, folder: Path) -> Path:
        return self.folder


class InBucket:
    def __init__(self, at: RepositoryFiles) -> None:
        self.bucket = at
        self.sent = 0

    def push(self, store: Store, dataset: DatasetId, meanwhile: Callable[[], None] = lambda: None) -> Transfer:
        head = store.chains.chain(dataset).head()
        assert head is not None
        missing = Missing(store.chains.chain(dataset), store.objects, dataset, 0, head, None)
        return push.push_dataset(
            missing,
            self.bucket,
            "flights",
            SignedState(0, head.hash, (), is_here=True),
            lambda _: meanwhile(),
            self._tell,
        )

    def _tell(self, size: int) -> None:
        self.sent += size

    def tree(self, folder: Path) -> Path:
        """All that is there, as files."""
        assert isinstance(self.bucket, Bucket)
        for page in obstore.list(self.bucket._store):
            for each in page:
                file = folder / each["path"]
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(bytes(obstore.get(self.bucket._store, each["path"]).bytes()))
        return folder / "flights"


class OnServer(InBucket):
    """A folder of an SFTP server."""

    def __init__(self, at: SftpFiles, folder: Path) -> None:
        super().__init__(at)
        self.folder = folder

    def tree(self, folder: Path) -> Path:
        return Path(shutil.copytree(self.folder / "odf" / "flights", folder / "flights"))


@pytest.fixture
def ssh(tmp_path: Path) -> Iterator[tuple[Served, Callable[[], SftpFiles]]]:
    """A server, and what opens another connection to it."""
    with sftp_served(tmp_path / "there") as served, ExitStack() as stack:
        served.folder.mkdir()

        def files() -> SftpFiles:
            place = place_of(served.url("/odf", "reader"))
            opened = open_sftp("house", place, served.host_key, {"password": PASSWORD})
            stack.callback(opened.close)
            return opened

        yield served, files


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    with s3_server() as running:
        yield running


@pytest.fixture(scope="session")
def azurite() -> Iterator[str]:
    with azurite_served() as running:
        yield running


@pytest.fixture(scope="session")
def google() -> Iterator[Cloud]:
    with google_served() as running:
        yield running


@pytest.fixture(
    params=["folder", "memory", *(pytest.param(each, marks=pytest.mark.slow) for each in ("s3", "az", "gs", "sftp"))]
)
def repository(request: Any, tmp_path: Path) -> Repository:
    if request.param == "folder":
        return InFolder(tmp_path / "out")
    if request.param == "memory":
        return InBucket(Bucket("memory", MemoryStore()))
    if request.param == "sftp":
        served, files = request.getfixturevalue("ssh")
        return OnServer(files(), served.folder)
    number = request.config.cache_number = getattr(request.config, "cache_number", 0) + 1
    name = f"bucket-{number}"
    match request.param:
        case "az":
            url, keys = new_container(request.getfixturevalue("azurite"), name), {"accountKey": azurite_key}
        case "gs":
            url, keys = request.getfixturevalue("google").new_bucket(name), {"serviceAccountKey": service_account()}
        case _:
            url, keys = new_bucket(request.getfixturevalue("server"), name), OPEN
    return InBucket(open_bucket(request.param, place_of(f"{url}/some/folder"), keys))


def holds(folder: Path, size: int) -> bool:
    chain = DirectoryChain(folder)
    report = verify_chain(chain, DirectoryObjects(folder), VerificationRequest(ref="there"))
    head = chain.head()
    return report.ok and head is not None and head.size == size


@pytest.mark.slow
def test_what_is_pushed_holds_and_goes_on(repository: Repository, store: Store, tmp_path: Path) -> None:
    dataset = store.take(9)
    assert repository.push(store, dataset).blocks == 9
    assert holds(repository.tree(tmp_path / "first"), 9)
    store.take()
    assert repository.push(store, dataset).blocks == SIZE - 9
    assert repository.push(store, dataset).blocks == 0
    there = repository.tree(tmp_path / "second")
    assert holds(there, SIZE)
    for file in (GOLDEN / "flights").glob("[bdr]*/*"):
        assert (there / file.relative_to(GOLDEN / "flights")).read_bytes() == file.read_bytes()


@pytest.mark.slow
def test_of_two_who_push_one_is_told_and_goes_on(
    repository: Repository, store: Store, other: Store, tmp_path: Path
) -> None:
    """Attack T-REPO-02: two pushes to one bucket.

    Defence: the head is written conditionally; the loser gets an error.
    """
    dataset = store.take()
    other.take(9)
    told: list[str] = []

    def meanwhile() -> None:
        """Once, while the first is at work, the other pushes."""
        if not told:
            try:
                repository.push(other, dataset)
                told.append("")
            except Conflict as fault:
                told.append(fault.rule)

    try:
        repository.push(store, dataset, meanwhile)
        first = ""
    except Conflict as fault:
        first = fault.rule
    assert sorted([first, *told]) == ["", "compare-and-append"]
    assert holds(repository.tree(tmp_path / "won"), SIZE if not first else 9)
    repository.push(store, dataset)
    assert holds(repository.tree(tmp_path / "then"), SIZE)


@pytest.mark.slow
def test_a_copy_that_is_behind_is_told(repository: Repository, store: Store, other: Store) -> None:
    repository.push(store, store.take())
    with pytest.raises(Conflict, match=f"is {SIZE - 9} blocks behind .* from #9 on") as caught:
        repository.push(other, other.take(9))
    assert caught.value.rule == "export-behind"


class CutOff(Exception):
    """The process ends here."""


class Mortal(Bucket):
    """Ends with a write; ``late``: after it was done."""

    left = 0
    late = False

    def put(self, path: str, content: Any) -> None:
        self._count(lambda: super(Mortal, self).put(path, content))

    def put_if(self, path: str, content: bytes, tag: str | None) -> bool:
        return self._count(lambda: super(Mortal, self).put_if(path, content, tag))

    def _count(self, write: Callable[[], Any]) -> Any:
        self.left -= 1
        if self.left < 0 and not (self.late and self.left == -1):
            raise CutOff
        done = write()
        if self.left < 0:
            raise CutOff
        return done


@pytest.mark.slow
@settings(max_examples=share(40), deadline=None)
@given(cuts=st.lists(st.tuples(st.integers(0, 60), st.booleans()), min_size=1, max_size=3))
def test_cut_off_anywhere_what_is_there_holds_and_goes_on(
    cuts: list[tuple[int, bool]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Attack T-REPO-02: an interrupted push.

    Defence: objects are written first, then blocks, then the head: the repository is valid at each point, and the next
    push resumes.
    """
    folder = tmp_path_factory.mktemp("cut")
    with made(folder / "state") as store:
        mortal = Mortal("memory", MemoryStore())
        repository = InBucket(mortal)
        size, dataset = 9, store.take(9)
        mortal.left = 10**6
        repository.push(store, dataset)
        store.take()
        for number, (left, late) in enumerate(cuts):
            mortal.left, mortal.late = left, late
            try:
                repository.push(store, dataset)
                size = SIZE
            except CutOff:
                if read_head(repository.tree(folder / f"cut-{number}")) == read_head(GOLDEN / "flights"):
                    size = SIZE
            assert holds(repository.tree(folder / f"there-{number}"), size)
        mortal.left = 10**6
        repository.push(store, dataset)
        assert holds(repository.tree(folder / "end"), SIZE)


class Forgetful(Bucket):
    """Writes whatever the condition is."""

    def put_if(self, path: str, content: bytes, tag: str | None) -> bool:
        self.put(path, content)
        return True


@pytest.mark.slow
def test_a_store_that_ignores_conditions_is_refused_before_anything_is_there(store: Store) -> None:
    """Attack T-REPO-02: a store that ignores the condition of a write.

    Defence: a trial write before the first head detects it, and the store is refused.
    """
    forgetful = Forgetful("house", MemoryStore())
    with pytest.raises(Refused, match="house ignores conditions of writes") as caught:
        InBucket(forgetful).push(store, store.take())
    assert caught.value.rule == "repository-conditions"
    assert [each["path"] for page in obstore.list(forgetful._store) for each in page] == [bucket.PROBE]


@pytest.mark.slow
def test_a_truncated_object_is_mended_and_a_swapped_head_is_told(store: Store, tmp_path: Path) -> None:
    """Attack T-REPO-01: a truncated object or a swapped head in a bucket.

    Defence: sizes are compared before an object counts as present; a head whose block is missing stops the push.
    """
    at = Bucket("house", MemoryStore())
    repository = InBucket(at)
    dataset = store.take()
    repository.push(store, dataset)
    data = sorted((GOLDEN / "flights" / "data").iterdir())[0]
    at.put(f"flights/data/{data.name}", data.read_bytes()[:-9])
    obstore.delete(at._store, "flights/refs/head")
    repository.push(store, dataset)
    assert holds(repository.tree(tmp_path / "mended"), SIZE)
    at.put("flights/refs/head", b"f1620" + b"0" * 64)
    with pytest.raises(Remote, match="house/flights does not hold its block"):
        repository.push(store, dataset)
    at.put("flights/refs/head", b"see you")
    with pytest.raises(Remote, match="refs/head of house/flights does not hold a block's hash"):
        repository.push(store, dataset)


@pytest.mark.slow
def test_what_is_damaged_here_is_not_pushed(store: Store, monkeypatch: Any) -> None:
    dataset = store.take()
    damaged = DirectoryChain(GOLDEN / "flights").block_at(SIZE - 1).event.new_data.physical_hash  # type: ignore[union-attr]
    whole = store.objects.path

    def path(name: Any) -> Path:
        found = whole(name)
        if name != damaged:
            return found
        spoilt = found.parent / "spoilt"
        spoilt.write_bytes(found.read_bytes()[:-1] + b"?")
        return spoilt

    monkeypatch.setattr(store.objects, "path", path)
    at = Bucket("house", MemoryStore())
    with pytest.raises(Invalid, match=r"object .* is damaged here"):
        InBucket(at).push(store, dataset)
    assert at.get("flights/refs/head", 99) is None
    assert at.size(f"flights/data/{damaged}") is None


@pytest.mark.slow
def test_credentials_stand_in_no_message(server: str, store: Store, monkeypatch: Any) -> None:
    """Attack T-REPO-03: keys of a bucket in errors, or keys of the daemon's environment in requests.

    Defence: error texts of the library are not shown; keys come only from the SecretSet.
    """
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAOFTHEDAEMON")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token-of-the-daemon")
    dataset = store.take(9)
    for url, why in (
        (f"s3+{server}/no-such-bucket", "there is no such bucket"),
        ("s3+http://127.0.0.1:9/house", "house cannot be asked: no answer"),
    ):
        place = place_of(url)
        monkeypatch.setattr(buckets, "RETRIES", 0)
        with pytest.raises((Refused, Remote), match=why) as caught:
            InBucket(open_bucket("house", place, OPEN)).push(store, dataset)
        told = repr(caught.value) + str(caught.value) + repr(caught.value.__cause__) + caught.value.hint
        assert not [each for each in (*OPEN.values(), "daemon", "Signature") if each in told]


# Conditional writes on an SFTP server: one of two wins, whoever stops at whichever step.

HEAD = "cities/refs/head"


class House:
    """A server, and connections to it that end with the test."""

    def __init__(self, served: Served, stack: ExitStack) -> None:
        self.served = served
        self._stack = stack

    def files(self, kind: type[SftpFiles] = SftpFiles, **more: Any) -> Any:
        said = {"host_key": self.served.host_key, "credentials": {"password": PASSWORD}, **more}
        found = open_sftp("house", place_of(self.served.url("/odf", "reader")), **said)
        files = kind(found.name, found._login, found._root)
        self._stack.callback(files.close)
        return files

    def head(self) -> str:
        return (self.served.folder / "odf" / HEAD).read_text()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with sftp_served(tmp_path_factory.mktemp("there")) as served:
        yield served


@pytest.fixture
def house(running: Served) -> Iterator[House]:
    with ExitStack() as stack:
        yield House(running, stack)
        for each in sorted(running.folder.rglob("*"), reverse=True):
            each.rmdir() if each.is_dir() else each.unlink()


@pytest.mark.slow
def test_files_are_written_whole_and_read_in_parts(house: House) -> None:
    files, content = house.files(), bytes(range(256)) * 9000
    files.put("cities/data/one", iter([content[:1000], content[1000:]]))
    assert files.size("cities/data/one") == len(content)
    assert b"".join(files.parts("cities/data/one", 17)) == content[17:]
    assert (files.get("none", 9), files.size("none")) == (None, None)
    with pytest.raises(FileMissing):
        next(files.parts("none", 0))
    with pytest.raises(Remote, match="has more than 9 bytes"):
        files.get("cities/data/one", 9)

    def torn() -> Iterator[bytes]:
        yield b"half"
        raise Invalid("the object is damaged here")

    with pytest.raises(Invalid):
        files.put("cities/data/two", torn())
    assert files.size("cities/data/two") is None
    assert list((house.served.folder / "odf" / STAGED).iterdir()) == []


@pytest.mark.slow
def test_of_many_who_write_over_one_version_one_wins(house: House) -> None:
    writers, tag = [house.files() for _ in range(4)], None
    with ThreadPoolExecutor(len(writers)) as pool:
        for turn in range(8):
            texts = [f"{turn}-{number}".encode() for number in range(len(writers))]
            won = list(pool.map(lambda files, text, tag=tag: files.put_if(HEAD, text, tag), writers, texts))
            assert won.count(True) == 1
            seen = {files.get(HEAD, 99) for files in writers}
            assert [each.content for each in seen] == [texts[won.index(True)]]
            assert house.head().encode() == texts[won.index(True)]
            (tag,) = (each.tag for each in seen)


class Stops(Exception):
    pass


class MortalSftp(SftpFiles):
    """Stops at one step: before or after the successor is made, or the file replaced."""

    at = ""

    async def _link(self, *args: Any) -> bool:
        return await self._step("link", super()._link, *args)

    async def _replace(self, *args: Any) -> None:
        return await self._step("replace", super()._replace, *args)

    async def _step(self, name: str, work: Callable[..., Any], *args: Any) -> Any:
        if self.at == f"before {name}":
            raise Stops
        done = await work(*args)
        if self.at == f"after {name}":
            raise Stops
        return done


@pytest.mark.slow
@pytest.mark.parametrize(
    ("at", "counts"), [("before link", False), ("after link", True), ("before replace", True), ("after replace", True)]
)
def test_a_writer_that_stops_has_written_or_has_not(house: House, at: str, counts: bool) -> None:
    """Attack T-REPO-02: two pushes to one SFTP server, one of which stops or sleeps in the middle.

    Defence: a version has one successor, made by a link that the server makes once and that is never deleted; the loser
    gets an error.
    """
    first, second = house.files(MortalSftp), house.files()
    assert second.put_if(HEAD, b"one", None)
    one = second.get(HEAD, 99)
    first.at = at
    with pytest.raises(Stops):
        first.put_if(HEAD, b"two", one.tag)
    seen = second.get(HEAD, 99)
    assert seen.content == (b"two" if counts else b"one")
    assert second.put_if(HEAD, b"other", one.tag) is not counts
    newest = second.get(HEAD, 99)
    assert second.put_if(HEAD, b"three", newest.tag)
    assert house.head() == "three"


@pytest.mark.slow
def test_a_writer_who_slept_does_not_set_the_file_back(house: House) -> None:
    """It replaces the file by what is the newest no more, and sees this before it is done."""
    slow, other = house.files(MortalSftp), house.files()
    slow.put_if(HEAD, b"one", None)
    slow.at = "before replace"
    with pytest.raises(Stops):
        slow.put_if(HEAD, b"two", slow.get(HEAD, 99).tag)
    assert other.put_if(HEAD, b"three", other.get(HEAD, 99).tag)
    (house.served.folder / "odf" / HEAD).write_bytes(b"two")
    assert other.get(HEAD, 99).content == b"three"
    assert other.put_if(HEAD, b"four", other.get(HEAD, 99).tag)
    assert house.head() == "four"


@pytest.mark.slow
def test_content_that_was_replaced_does_not_come_back(house: House) -> None:
    files = house.files()
    for text in (b"one", b"two"):
        found = files.get(HEAD, 99)
        assert files.put_if(HEAD, text, None if found is None else found.tag)
    newest = files.get(HEAD, 99)
    assert not files.put_if(HEAD, b"one", newest.tag)
    assert files.put_if(HEAD, b"two", newest.tag)
    assert files.get(HEAD, 99) == newest


@pytest.mark.slow
def test_a_server_is_tested_before_it_is_written_to(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attack T-REPO-02: an SFTP server on which of two pushes one would be lost.

    Defence: links and renames are tested before a head moves; the server is refused by name.
    """
    files = house.files()
    files.check_conditions()
    files.check_conditions()
    assert files.size(PROBE) == 4
    import asyncssh

    async def none(*_: Any) -> None:
        raise asyncssh.SFTPOpUnsupported("no")

    with monkeypatch.context() as patched:
        patched.setattr(asyncssh.SFTPClient, "link", none)
        with pytest.raises(Refused, match=r"house cannot make a hard link .* one would be lost silently"):
            files.check_conditions()
    monkeypatch.setattr(asyncssh.SFTPServer, "link", lambda *_: None)
    with pytest.raises(Refused, match="house cannot refuse a link where a file is"):
        files.check_conditions()


@pytest.mark.slow
def test_another_server_and_another_user_are_refused(house: House) -> None:
    """Attack T-REPO-03: another server in the place of an SFTP repository, to get the password.

    Defence: the repository names the server's key, without which it is not declared; another key is refused before the
    node signs in.
    """
    import asyncssh

    other = " ".join(asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode().split()[:2])
    with pytest.raises(Refused, match=r"the server's key is SHA256:\S+, and the repository house names SHA256:"):
        house.files(host_key=other).get(HEAD, 9)
    with pytest.raises(Refused, match="the server refuses 'reader'") as caught:
        house.files(credentials={"password": "wrong-password"}).get(HEAD, 9)
    assert "wrong-password" not in str(caught.value)
    assert house.files(credentials={"privateKey": house.served.private_key}).get(HEAD, 9) is None


@pytest.mark.slow
def test_a_closed_connection_is_told_and_opened_again(house: House) -> None:
    files = house.files()
    files.put("one", b"1")
    connection = files._connection
    files._loop.call_soon_threadsafe(connection.abort)
    with suppress(Remote):
        files.size("one")
    assert files.size("one") == 1
    files.close()
    assert files.size("one") == 1


@pytest.mark.slow
def test_a_server_that_is_silent_is_left(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncssh

    async def never(*_: Any) -> None:
        await asyncio.Event().wait()

    files = house.files()
    files.put("one", b"1")
    monkeypatch.setattr(sftp, "SILENCE_SECONDS", 0.05)
    with monkeypatch.context() as patched:
        patched.setattr(asyncssh.SFTPClient, "stat", never)
        with pytest.raises(Remote, match="house cannot be asked: TimeoutError"):
            files.size("one")
    monkeypatch.undo()
    assert files.size("one") == 1

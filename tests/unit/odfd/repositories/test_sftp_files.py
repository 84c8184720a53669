"""Conditional writes on an SFTP server: one of two wins, whoever stops at whichever step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any

import pytest

from chain.errors import Invalid, Refused, Remote
from odfd.repositories import sftp
from odfd.repositories.manifest import place_of
from odfd.repositories.sftp import PROBE, STAGED, SftpFiles, open_sftp
from p2p.ports import FileMissing
from worlds.sftp import PASSWORD, Served, sftp_served

pytestmark = pytest.mark.slow
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


class Mortal(SftpFiles):
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


@pytest.mark.parametrize(
    ("at", "counts"), [("before link", False), ("after link", True), ("before replace", True), ("after replace", True)]
)
def test_a_writer_that_stops_has_written_or_has_not(house: House, at: str, counts: bool) -> None:
    """Attack T-REPO-02: two pushes to one SFTP server, one of which stops or sleeps in the middle.

    Defence: a version has one successor, made by a link that the server makes once and that is never deleted; the loser
    gets an error.
    """
    first, second = house.files(Mortal), house.files()
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


def test_a_writer_who_slept_does_not_set_the_file_back(house: House) -> None:
    """It replaces the file by what is the newest no more, and sees this before it is done."""
    slow, other = house.files(Mortal), house.files()
    slow.put_if(HEAD, b"one", None)
    slow.at = "before replace"
    with pytest.raises(Stops):
        slow.put_if(HEAD, b"two", slow.get(HEAD, 99).tag)
    assert other.put_if(HEAD, b"three", other.get(HEAD, 99).tag)
    (house.served.folder / "odf" / HEAD).write_bytes(b"two")
    assert other.get(HEAD, 99).content == b"three"
    assert other.put_if(HEAD, b"four", other.get(HEAD, 99).tag)
    assert house.head() == "four"


def test_content_that_was_replaced_does_not_come_back(house: House) -> None:
    files = house.files()
    for text in (b"one", b"two"):
        found = files.get(HEAD, 99)
        assert files.put_if(HEAD, text, None if found is None else found.tag)
    newest = files.get(HEAD, 99)
    assert not files.put_if(HEAD, b"one", newest.tag)
    assert files.put_if(HEAD, b"two", newest.tag)
    assert files.get(HEAD, 99) == newest


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

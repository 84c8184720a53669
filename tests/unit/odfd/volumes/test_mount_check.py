"""A mount that hangs holds one thread, whoever asks it how often, and answers again when it is back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from chain.errors import Environment
from chain.multihash import Multihash
from odfd.services.volumes.mount_check import MountCheck
from odfd.services.volumes.volume_paths import MARK, VolumeFolder
from worlds.eventually import until

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
        with pytest.raises(Environment, match="does not answer: is its server there") as told:
            ask()
        assert told.value.rule == "volume-away"
    assert (tmp_path / "v" / MARK).is_file()

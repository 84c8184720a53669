"""The socket file: modes, stale and live ones, paths; and who is admitted."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from chain.errors import Environment, Invalid
from odfd.control import endpoint
from odfd.control.endpoint import Caller, Gate, caller_of, group_id


def test_only_the_owner_unless_there_is_a_group(tmp_path: Path) -> None:
    for gid, mode in ((None, 0o600), (os.getegid(), 0o660)):
        path = tmp_path / f"s{gid}"
        with endpoint.bind(path, gid):
            assert path.stat().st_mode & 0o777 == mode


def test_a_dead_socket_is_replaced_a_live_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "s"
    endpoint.bind(path).close()
    assert path.exists()
    with endpoint.bind(path), pytest.raises(Environment, match="another daemon listens"):
        endpoint.bind(path)


def test_a_full_backlog_is_somebody(tmp_path: Path) -> None:
    path = tmp_path / "s"
    waiting = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen(0)
        for _ in range(3):
            one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            one.setblocking(False)
            one.connect_ex(str(path))
            waiting.append(one)
        try:
            with pytest.raises(Environment, match="another daemon listens"):
                endpoint.bind(path)
        finally:
            for one in waiting:
                one.close()


def test_what_is_not_a_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("data")
    with pytest.raises(Environment, match="is not a socket"):
        endpoint.bind(path)
    assert path.read_text() == "data"
    with pytest.raises(Environment, match="cannot listen on"):
        endpoint.bind(path / "below")


def test_the_limit_of_the_path_is_exact(tmp_path: Path) -> None:
    folder = str(tmp_path) + "/"
    fitting = Path(folder + "x" * (endpoint.MAX_PATH - len(folder)))
    endpoint.release(endpoint.bind(fitting), fitting)
    assert not fitting.exists()
    with pytest.raises(Invalid, match="108 bytes, and the kernel takes at most 107"):
        endpoint.bind(Path(str(fitting) + "x"))


def test_release_leaves_a_successor_alone(tmp_path: Path) -> None:
    path = tmp_path / "s"
    old = endpoint.bind(path)
    path.unlink()
    with endpoint.bind(path):
        endpoint.release(old, path)
        assert path.exists()


def test_the_kernel_knows_the_caller() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        caller = caller_of(ours)
    assert (caller.pid, caller.uid, caller.gid) == (os.getpid(), os.geteuid(), os.getegid())
    assert caller.groups == frozenset(os.getgroups())


def test_who_is_admitted() -> None:
    def caller(uid: int, gid: int = 500, *groups: int) -> Caller:
        return Caller(1, uid, gid, frozenset(groups))

    gate = Gate(own_uid=1000, gid=44)
    assert gate.admits(caller(0))
    assert gate.admits(caller(1000))
    assert gate.admits(caller(7, 44))
    assert gate.admits(caller(7, 500, 43, 44))
    assert not gate.admits(caller(7, 500, 43))
    assert not Gate(own_uid=1000).admits(caller(7, 44))
    assert group_id("") is None
    with pytest.raises(Environment, match="no group 'nobody-has-this'"):
        group_id("nobody-has-this")

"""Commands of ``prepare: Pipe``, as this user and in a sandbox: the same file comes out, and both are bounded."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import trio

from chain.errors import Environment, Fault, Invalid, Refused
from chain.model.source import Pipe
from engines.sandbox.base import SandboxLevel
from engines.sandbox.bubblewrap import Bubblewrap, host_runtime
from engines.sandbox.probe import SandboxChoice, choose, trial
from odfd.ingest.settings import CommandSandbox, IngestSettings, PipeMode
from worlds.sources import prepare

Run = Callable[..., bytes]
CSV = b"bank of canada\nnotes\n\nREPORT\ndate,rate\n2024-01-02,1.33\n2024-01-03,1.34\n"


@cache
def why_no_sandbox() -> str:
    binary = shutil.which("bwrap")
    if binary is None:
        return "no bubblewrap here"
    return "; ".join(trio.run(trial, Bubblewrap(binary, host_runtime(()))).problems)


@pytest.fixture(params=["user", "sandbox"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    """Runs a command over bytes; returns what it made."""
    if request.param == "sandbox" and why_no_sandbox():
        pytest.skip(why_no_sandbox())
    return partial(piped, tmp_path, request.param)


def piped(folder: Path, mode: PipeMode, *command: str, data: bytes = CSV, **more: Any) -> bytes:
    (folder / "in").write_bytes(data)
    settings = IngestSettings(staging=folder, pipe=mode, environment={"PATH": "/usr/bin:/bin"}, **more)
    return prepare(folder / "in", [Pipe(command=command)], folder, settings).read_bytes()


@pytest.mark.slow
def test_the_output_is_the_file(run: Run) -> None:
    """The first is how kamu's example of exchange rates drops a preamble."""
    assert run("sed", "-n", "/^date/,$p") == CSV[CSV.index(b"date,") :]
    assert run("sort", "-r").splitlines() == sorted(CSV.splitlines(), reverse=True)
    assert run("sh", "-c", "cat > /tmp/odfd-of-a-pipe; cat /tmp/odfd-of-a-pipe; rm /tmp/odfd-of-a-pipe") == CSV
    assert run("true") == b""


@pytest.mark.slow
def test_a_command_may_end_before_it_read_all(run: Run) -> None:
    assert run("head", "-n", "1", data=b"x\n" * (4 << 20)) == b"x\n"


@pytest.mark.slow
def test_more_than_a_pipe_holds_goes_through(run: Run) -> None:
    data = bytes(range(256)) * (16 << 10)
    assert run("cat", data=data) == data


@pytest.mark.slow
def test_a_failure_is_told_with_its_words(run: Run) -> None:
    with pytest.raises(Invalid, match="sh ended with 3: oh"):
        run("sh", "-c", "echo oh >&2; exit 3")
    with pytest.raises(Environment, match="cannot run no-such-program: no such program in "):
        run("no-such-program")
    with pytest.raises(Invalid, match="names no command"):
        run()


@pytest.mark.slow
def test_memory_is_bounded(run: Run) -> None:
    with pytest.raises(Invalid, match="ended with"):
        run(shutil.which("python3") or "python3", "-c", "print(len(bytearray(256 << 20)))", pipe_memory=64 << 20)


@pytest.mark.slow
def test_output_and_time_are_bounded(run: Run) -> None:
    with pytest.raises(Refused, match="what yes gave is larger than"):
        run("yes", max_source_bytes=1 << 20)
    with pytest.raises(Refused, match=r"sleep ran over 0\.2 s"):
        run("sleep", "1000", pipe_timeout=0.2)


@pytest.mark.slow
def test_variables_are_those_of_the_settings(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "of-the-daemon")
    seen = run("env", variables={"KEY": "given"})
    assert b"KEY=given" in seen
    assert b"of-the-daemon" not in seen


@pytest.mark.slow
def test_a_sandbox_has_no_network_and_no_files_of_ours(tmp_path: Path) -> None:
    if why_no_sandbox():
        pytest.skip(why_no_sandbox())
    (tmp_path / "secret").write_text("hush")
    with pytest.raises(Invalid, match="No such file"):
        piped(tmp_path, "sandbox", "cat", str(tmp_path / "secret"))
    with socket.create_server(("127.0.0.1", 0)) as server:
        call = f"import socket; socket.create_connection(('127.0.0.1', {server.getsockname()[1]}))"
        with pytest.raises(Invalid, match="refused"):
            piped(tmp_path, "sandbox", "/usr/bin/python3", "-c", call)


def test_where_no_sandbox_holds_nothing_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def none() -> SandboxChoice:
        return await choose(SandboxLevel.CONTAINER)

    def refused(sandbox: CommandSandbox) -> Fault:
        with pytest.raises(Refused) as caught:
            piped(tmp_path, "sandbox", "cat", sandbox=sandbox)
        assert caught.value.rule == "prepare-pipe"
        assert 'ingest.pipe = "user"' in (caught.value.hint or "")
        return caught.value

    monkeypatch.setenv("PATH", "")
    assert "bubblewrap (bwrap) is not installed" in refused(CommandSandbox()).message
    monkeypatch.setattr(shutil, "which", lambda *_, **__: "/usr/bin/bwrap")
    assert "no sandbox of level `container`" in refused(CommandSandbox(none)).message

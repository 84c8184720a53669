"""Programs of others for the tests, fetched once into a cache: js-libp2p from npm, a Kubo and a peer of go-libp2p
built from their sources, and Arrow's JDBC driver from Maven.

The cache is ``ODF_TEST_CACHE``, or ``odfd-tests`` in the user's cache folder: never inside the tree. As a program it
fills the cache, for whoever has time to spare before the tests.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from worlds.eventually import PATIENCE

HERE = Path(__file__).parents[1] / "nightly" / "interop"
KUBO = "v0.43.0"
JDBC = "org.apache.arrow:flight-sql-jdbc-driver:18.3.0"
JDBC_SHA256 = "3f418b46c880e263558c5de669bdbede2c5d4375527ced116fb29f795b03704c"
COPYING = "org.apache.maven.plugins:maven-dependency-plugin:2.8:copy"
BUILD_SECONDS = 1500
UNPOLISHED = ("-tags", "nofuse", "-gcflags=all=-N -l -dwarf=false", "-ldflags=-s -w")
"""A Kubo that is quick to build, not to run: optimising it took longer than all that is ever asked of it."""


def cache() -> Path:
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "odfd-tests"
    return Path(os.environ.get("ODF_TEST_CACHE", default))


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """One test run at a time builds here; the others wait for it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def needed(program: str, what: str) -> str:
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"{program} is not installed: {what} cannot be run")
    return found


def run(*command: str, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        command, cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True, timeout=BUILD_SECONDS
    )
    assert done.returncode == 0, f"{command}: {done.stderr[-3000:]}"
    return done.stdout


def fetch(what: str, *command: str, cwd: Path) -> None:
    """Skips where a registry cannot be reached: that says nothing of us."""
    try:
        run(*command, cwd=cwd)
    except (AssertionError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"{what} cannot be fetched: {error}")


def js_peer() -> list[str]:
    """The command that starts a peer of js-libp2p. Skips where there is no Node."""
    node, npm = needed("node", "js-libp2p"), needed("npm", "js-libp2p")
    locked = (HERE / "js" / "package-lock.json").read_bytes()
    folder = cache() / f"js-{hashlib.sha256(locked).hexdigest()[:16]}"
    with alone(folder):
        if not (folder / "done").exists():
            for name in ("package.json", "package-lock.json"):
                shutil.copy(HERE / "js" / name, folder)
            fetch("js-libp2p", npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts", cwd=folder)
            (folder / "done").touch()
        shutil.copy(HERE / "js" / "peer.mjs", folder)
    return [node, str(folder / "peer.mjs")]


def kubo() -> Path:
    """A Kubo, built if need be: minutes the first time. Skips where there is no Go."""
    folder = cache() / f"kubo-{KUBO}"
    binary = folder / "ipfs"
    with alone(folder):
        if not binary.exists():
            go = needed("go", "Kubo")
            shutil.copy(HERE / "kubo.mod", folder / "go.mod")
            fetch("Kubo", go, "mod", "download", f"github.com/ipfs/kubo@{KUBO}", cwd=folder)
            sources = run(go, "env", "GOMODCACHE", cwd=folder).strip()
            shutil.copy(Path(sources) / f"github.com/ipfs/kubo@{KUBO}" / "go.sum", folder / "go.sum")
            target = folder / "ipfs.new"
            build = ("build", "-p", "2", *UNPOLISHED, "-o", str(target), "github.com/ipfs/kubo/cmd/ipfs")
            run(go, *build, cwd=folder, GOFLAGS="-mod=mod -buildvcs=false", CGO_ENABLED="0")
            target.rename(binary)
    return binary


def jdbc_driver() -> Path:
    """The file of Arrow's driver for Flight SQL. Skips where there is no Maven, fails where the file is another."""
    name = "-".join(JDBC.split(":")[1:]) + ".jar"
    folder = cache() / f"jdbc-{JDBC_SHA256[:16]}"
    with alone(folder):
        if not (folder / name).exists():
            maven, new = needed("mvn", "Arrow's JDBC driver"), folder / "new"
            fetch("JDBC", maven, "-q", "-B", COPYING, f"-Dartifact={JDBC}", f"-DoutputDirectory={new}", cwd=folder)
            found = hashlib.sha256((new / name).read_bytes()).hexdigest()
            assert found == JDBC_SHA256, f"{JDBC} is another file: {found}"
            (new / name).rename(folder / name)
    return folder / name


def go_peer() -> Path:
    """A peer of the go-libp2p that Kubo uses, built from that of the cache in seconds. Skips where there is no Go."""
    kubo()
    source = (HERE / "go" / "peer.go").read_bytes()
    folder = cache() / f"kubo-{KUBO}"
    binary = folder / f"peer-{hashlib.sha256(source).hexdigest()[:16]}"
    with alone(folder):
        if not binary.exists():
            (folder / "peer").mkdir(exist_ok=True)
            (folder / "peer" / "main.go").write_bytes(source)
            target = folder / "peer.new"
            build = ("build", "-p", "2", *UNPOLISHED, "-o", str(target), "./peer")
            run(needed("go", "go-libp2p"), *build, cwd=folder, GOFLAGS="-mod=mod -buildvcs=false", CGO_ENABLED="0")
            target.rename(binary)
    return binary


class ForeignPeer:
    """A running peer of js-libp2p or go-libp2p."""

    def __init__(self, process: trio.Process) -> None:
        self._process = process
        self._unread = b""
        self.address = ""

    async def line(self) -> Any:
        assert self._process.stdout is not None
        while b"\n" not in self._unread:
            part = await self._process.stdout.receive_some()
            assert part, "the peer ended"
            self._unread += part
        line, _, self._unread = self._unread.partition(b"\n")
        said = json.loads(line)
        assert "error" not in said, said
        return said

    async def do(self, *command: Any) -> Any:
        assert self._process.stdin is not None
        await self._process.stdin.send_all(json.dumps(command).encode() + b"\n")
        return await self.line()


@asynccontextmanager
async def open_js(*words: str) -> AsyncIterator[ForeignPeer]:
    """``relay`` makes it one."""
    async with _opened([*await trio.to_thread.run_sync(js_peer), *words]) as peer:
        yield peer


@asynccontextmanager
async def open_go(*words: str) -> AsyncIterator[ForeignPeer]:
    """``relay`` makes it one."""
    async with _opened([str(await trio.to_thread.run_sync(go_peer)), *words]) as peer:
        yield peer


@asynccontextmanager
async def _opened(command: list[str]) -> AsyncIterator[ForeignPeer]:
    process = await trio.lowlevel.open_process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        peer = ForeignPeer(process)
        peer.address = (await peer.line())["ready"][0]
        yield peer
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()


class Kubo:
    """A running Kubo of the test's own, on loopback, that knows nobody."""

    def __init__(self, binary: Path, folder: Path) -> None:
        self._binary = binary
        self._folder = folder

    @property
    def api(self) -> str:
        """Where its RPC listens."""
        _, _, host, _, port = (self._folder / "api").read_text().split("/")
        return f"http://{host}:{port}"

    def ipfs(self, *words: str) -> str:
        return run(str(self._binary), *words, cwd=self._folder, IPFS_PATH=str(self._folder))

    def fetch(self, *words: str) -> bytes:
        """What a command gives that is not text."""
        command = [str(self._binary), *words]
        environment = {**os.environ, "IPFS_PATH": str(self._folder)}
        return subprocess.run(command, env=environment, capture_output=True, timeout=PATIENCE, check=True).stdout

    async def do(self, *words: str) -> str:
        return await trio.to_thread.run_sync(self.ipfs, *words)

    async def about(self, *peer: str) -> Any:
        return json.loads(await self.do("id", *peer))

    @asynccontextmanager
    async def running(self, settings: dict[str, Any], made: Callable[[str], None]) -> AsyncIterator[Kubo]:
        def prepare() -> None:
            self.ipfs("init", "--profile", "test", "--empty-repo")
            for name, value in {"Experimental.Libp2pStreamMounting": True, **settings}.items():
                self.ipfs("config", "--json", name, json.dumps(value))

        await trio.to_thread.run_sync(prepare)
        made(json.loads((self._folder / "config").read_text())["Identity"]["PeerID"])
        process = await trio.lowlevel.open_process(
            [str(self._binary), "daemon"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "IPFS_PATH": str(self._folder)},
        )
        said = b""
        try:
            assert process.stdout is not None
            while b"Daemon is ready" not in said:
                part = await process.stdout.receive_some()
                assert part, said.decode()
                said += part
            async with trio.open_nursery() as nursery:
                nursery.start_soon(drain, process.stdout)
                yield self
                nursery.cancel_scope.cancel()
        finally:
            process.terminate()
            with trio.CancelScope(shield=True):
                with trio.move_on_after(10):
                    await process.wait()
                if process.returncode is None:
                    process.kill()
                    await process.wait()


async def drain(stream: trio.abc.ReceiveStream) -> None:
    """What a daemon says is of no interest, but must be taken from it."""
    async for _ in stream:
        pass


@asynccontextmanager
async def open_kubo(
    folder: Path, settings: dict[str, Any] | None = None, made: Callable[[str], None] = lambda _peer: None
) -> AsyncIterator[Kubo]:
    """``settings``: values of its configuration by name; ``made`` gets its peer id before it runs."""
    await trio.Path(folder).mkdir(exist_ok=True)
    binary = await trio.to_thread.run_sync(kubo)
    async with Kubo(binary, folder).running(settings or {}, made) as daemon:
        yield daemon


def main() -> None:
    for fetched in (js_peer, kubo, go_peer, jdbc_driver):
        try:
            fetched()
        except pytest.skip.Exception as why:
            print(f"its tests will skip: {why}")


if __name__ == "__main__":
    main()

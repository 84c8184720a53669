"""Programs of sources: commands of ``prepare: Pipe``, sandboxed or not, and images that a real podman runs."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import uuid
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from chain import instant
from chain.errors import Environment, Fault, Invalid, Refused
from chain.model.events import SourceState
from chain.model.fetch_options import ContainerAccess, fetch_options
from chain.model.source import EnvVar, FetchContainer, Pipe
from engines.sandbox.base import SandboxLevel
from engines.sandbox.bubblewrap import Bubblewrap, host_runtime
from engines.sandbox.container import label_of
from engines.sandbox.probe import SandboxChoice, choose, trial
from odfd.ingest import containers
from odfd.ingest.acceptance import check_source
from odfd.ingest.containers import ContainerJob, arguments, check_left
from odfd.ingest.fetch import container
from odfd.ingest.fetch.dispatch import check_fetch, fetch
from odfd.ingest.fetch.source import ETAG, Fetched, FetchJob, Unchanged
from odfd.ingest.refetch import confine
from odfd.ingest.settings import PATIENCE, CommandSandbox, FormerContainers, IngestSettings, PipeMode
from worlds.containers import containers as containers_now
from worlds.containers import image_of_programs
from worlds.eventually import became
from worlds.sources import examples, prepare, source

# Commands of ``prepare: Pipe``, as this user and in a sandbox: the same file comes out, and both are bounded.


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
    """Attack T-SOURCE-02: a command of a manifest that reads files of the node, or calls home.

    Defence: commands run in a sandbox without a network, with only the programs of /usr and the Python of the node, in
    bounded memory and time; if no sandbox works they are refused unless the settings allow them; commands in manifests
    of other nodes never run.
    """
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


# What images of sources give, run by a real podman: the words between node and program are kamu's.


NOW = instant.parse("2050-01-01T12:00:00Z")
DIGEST = "sha256:" + "ab" * 32
NAMED = f"registry.example:5000/a/b@{DIGEST}"


@pytest.fixture(scope="module")
def image() -> Iterator[str]:
    with image_of_programs() as made:
        yield made


class Program:
    """A shell script as a source, and what the chain would say of it."""

    def __init__(self, image: str, folder: Path) -> None:
        self.image, self.folder, self.number = image, folder, 0
        self.state: SourceState | None = None

    def job(self, network: bool = False, **more: Any) -> FetchJob:
        self.number += 1
        folder = self.folder / str(self.number)
        folder.mkdir()
        settings = IngestSettings(
            staging=self.folder, **{"container": "offline", "variables": {"KEY": 'it\'s a "key" #=$X \\n '}, **more}
        )
        return FetchJob(
            state=self.state,
            now=NOW,
            folder=folder,
            settings=settings,
            dataset="did:odf:a",
            options=ContainerAccess(network=network),
        )

    def fetch(self, script: str, *words: str, network: bool = False, env: Any = None, **more: Any) -> Any:
        step = FetchContainer(image=self.image, command=("sh", "-c"), args=(script, "sh", *words), env=env)
        try:
            found = trio.run(fetch, step, self.job(network, **more))
        finally:
            assert not self.containers(), "it is gone, however it ended"
        if isinstance(found, Fetched):
            self.state = found.state
        return found

    def containers(self) -> list[str]:
        return containers_now(f"label={label_of(self.folder)}")

    def said(self, script: str, *words: str, **more: Any) -> str:
        return self.fetch(script, *words, **more).path.read_text()


@pytest.fixture
def program(image: str, tmp_path: Path) -> Program:
    return Program(image, tmp_path)


@pytest.mark.slow
def test_its_output_is_the_file(program: Program) -> None:
    """Of kamu's tests: what is printed, also when the command is that of the image."""
    assert program.said("printf 'a,b\\n1,2\\n'") == "a,b\n1,2\n"
    assert program.said("seq 200000; echo on the other >&2").splitlines()[-1] == "200000"
    step = FetchContainer(image=program.image, command=("seq", "2"))
    assert trio.run(fetch, step, program.job()).path.read_text() == "1\n2\n"
    found = program.fetch("true")
    assert isinstance(found, Fetched), "of a source without a state all is news"
    assert (found.path.read_text(), found.state, found.has_more) == ("", None, False)
    assert program.image in found.name


@pytest.mark.slow
def test_variables_and_arguments_are_filled_in_and_no_others_are_seen(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_TOKEN", "hush")
    env = (
        EnvVar(name="PLAIN", value=" VAL "),
        EnvVar(name="FILLED", value="tpl_${{ env.KEY }}"),
        EnvVar(name="KEY", value=None),
        EnvVar(name="QUOTED", value='"x y"'),
    )
    key = 'it\'s a "key" #=$X \\n '
    lines = program.said("env", env=env).splitlines()
    assert {"PLAIN= VAL ", f"FILLED=tpl_{key}", f"KEY={key}", 'QUOTED="x y"', "ODF_BATCH_SIZE=10000"} <= set(lines)
    assert not [line for line in lines if "hush" in line]
    assert program.said('printf %s "$1"', "${{ env.KEY || 'b' }}") == key
    assert program.said("echo $ODF_BATCH_SIZE", env=(EnvVar(name="ODF_BATCH_SIZE", value="40000"),)) == "40000\n"
    with pytest.raises(Invalid, match="several lines"):
        program.fetch("env", env=(EnvVar(name="A", value="b\nc"),))


BATCHES = """
    done=${ODF_ETAG:-0}; next=$((done + ODF_BATCH_SIZE)); [ $next -lt $ROWS ] || next=$ROWS
    [ $done -eq $ROWS ] || seq $((done + 1)) $next
    [ $next -eq $ROWS ] || touch $ODF_NEW_HAS_MORE_DATA_PATH
    echo $next > $ODF_NEW_ETAG_PATH
"""


@pytest.mark.slow
def test_batches_go_on_where_the_last_one_ended(program: Program) -> None:
    env = (EnvVar(name="ODF_BATCH_SIZE", value="40"), EnvVar(name="ROWS", value="100"))
    found = []
    for _ in range(3):
        fetched = program.fetch(BATCHES, env=env)
        assert fetched.state.kind == ETAG
        found.append((fetched.state.value, fetched.has_more, len(fetched.path.read_text().split())))
    assert found == [("40", True, 40), ("80", True, 40), ("100", False, 20)]
    assert isinstance(program.fetch(BATCHES, env=env), Unchanged)


@pytest.mark.slow
def test_a_time_can_be_the_state(program: Program) -> None:
    script = '[ -n "$ODF_LAST_MODIFIED" ] || echo a; echo 2024-05-01T12:00:00+02:00 > $ODF_NEW_LAST_MODIFIED_PATH'
    assert program.fetch(script).state.value == "2024-05-01T10:00:00Z"
    assert isinstance(program.fetch(script), Unchanged)
    assert program.said("echo $ODF_LAST_MODIFIED,$ODF_ETAG") == "2024-05-01T10:00:00Z,\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("echo a; echo 1 > $ODF_NEW_ETAG_PATH", "and the state that it had before: '1'"),
        ("touch $ODF_NEW_HAS_MORE_DATA_PATH", "leaves no state to continue from"),
        ("echo gestern > $ODF_NEW_LAST_MODIFIED_PATH", "no time in new-last-modified"),
        ("seq 5000 > $ODF_NEW_ETAG_PATH", "else than a line of 4,096 bytes"),
        ("printf '\\377' > $ODF_NEW_ETAG_PATH", "else than a line of 4,096 bytes"),
        ("ln -s /etc/passwd $ODF_NEW_ETAG_PATH", "new-etag is no plain file"),
        ("mkfifo $ODF_NEW_ETAG_PATH", "new-etag is no plain file"),
        ("mkdir $ODF_NEW_HAS_MORE_DATA_PATH", "new-has-more-data is no plain file"),
        ("echo oh >&2; exit 3", "ended with 3: oh"),
        ("no-such-program", "ended with 127: .*not found"),
    ],
)
def test_what_cannot_be_is_refused(program: Program, script: str, told: str) -> None:
    """Attack T-SOURCE-02: a container that leaves a link, a pipe or a large file in place of its state.

    Defence: only plain files are opened, never through links, 4 KiB of each; the folder is bounded.
    """
    program.state = SourceState(source_name="default", kind=ETAG, value="1")
    with pytest.raises(Invalid, match=told):
        program.fetch(script)


@pytest.mark.slow
def test_it_reaches_nothing_and_changes_nothing(program: Program) -> None:
    """Attack T-SOURCE-02: a manifest that runs a container to read this machine or to call home.

    Defence: off until `ingest.container` allows it; the image is named by digest and never fetched; no capabilities,
    read-only root, not root inside, bounded memory, processes, time and output; no network unless both manifest and
    settings say so; images in manifests of other nodes never run.

    The network is that of a container without one: its loopback alone.
    """
    assert [line.split(":")[0].strip() for line in program.said("cat /proc/net/dev").splitlines()[2:]] == ["lo"]
    seen = program.said("cat /proc/self/status; touch /tmp/a /run/a")
    status = dict(line.split(":\t", 1) for line in seen.splitlines() if ":\t" in line)
    assert int(status["CapEff"], 16) == int(status["CapBnd"], 16) == 0
    assert status["NoNewPrivs"] == "1"
    assert status["Uid"].split()[0] != "0"
    assert "Read-only" in program.said("touch /etc/a 2>&1 || true")


@pytest.mark.slow
def test_time_memory_and_output_are_bounded(program: Program) -> None:
    with pytest.raises(Refused, match=r"ran over 1\.5 s"):
        program.fetch("sleep 100", patience=PATIENCE._replace(total=1.5))
    with pytest.raises(Refused, match="is larger than 1000 bytes"):
        program.fetch("while true; do echo abcdefghij; done", max_source_bytes=1000)
    with pytest.raises(Refused, match="left 1 file and"):
        program.fetch("seq 10000000 > /opt/odf/out/a; sleep 100")
    with pytest.raises(Invalid, match="ended with 137"):
        program.fetch("head -c 200000000 /dev/zero > /tmp/a; sleep 100", container_memory=64 << 20)


@pytest.mark.slow
def test_what_outlived_a_killed_node_ends_with_the_next_fetch(program: Program) -> None:
    """A node that was killed has left a container that goes on: the name says whose it is."""
    name = ContainerJob(
        image=program.image, command=None, args=(), env={}, network=False, owner="did:odf:a", folder=program.folder
    ).name(program.folder)

    async def left() -> None:
        await trio.run_process(
            ["podman", "run", "--detach", "--name", name, "--label", label_of(program.folder), "--network=none",
             "--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024", program.image, "sleep", "1000"],
            capture_stdout=True,
        )  # fmt: skip

    trio.run(left)
    assert program.containers() == [name]
    assert program.said("echo a") == "a\n"


@pytest.mark.slow
def test_what_a_killed_life_left_is_removed_and_what_others_have_stays(program: Program, tmp_path: Path) -> None:
    """Attack T-QUERY-01: a container that a killed node had created and not started, which therefore never ends.

    Defence: it has a label of the node's folder; the next start of that node removes it, and no container of another
    node.

    As podman was killed between making a container and starting it, or ran it until now.
    """
    mine, other = label_of(program.folder), label_of(tmp_path / "other")
    name = f"odfd-left-{uuid.uuid4().hex[:8]}"

    async def left() -> int:
        bounds = ("--network=none", "--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024")
        for number, (label, words) in enumerate([(mine, ["create"]), (mine, ["run", "-d"]), (other, ["create"])]):
            made = (*words, "--name", f"{name}-{number}", "--label", label, *bounds, program.image, "sleep", "1000")
            await trio.run_process(["podman", *made], capture_stdout=True)
        former = FormerContainers()
        return await former.remove(program.folder) + await former.remove(program.folder)

    try:
        assert trio.run(left) == 2
        assert containers_now(f"name={name}") == [f"{name}-2"]
    finally:
        subprocess.run(["podman", "rm", "--force", "--ignore", f"{name}-2"], check=True, capture_output=True)


@pytest.mark.slow
def test_a_cancelled_fetch_leaves_no_container(program: Program) -> None:
    async def cancelled() -> None:
        step = FetchContainer(image=program.image, command=("sh", "-c"), args=("echo a; sleep 1000",))
        job = program.job()
        printed = job.folder / "printed"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fetch, step, job)
            await became(lambda: printed.is_file() and bool(program.containers()))
            nursery.cancel_scope.cancel()

    trio.run(cancelled)
    assert program.containers() == []
    assert not list(program.folder.rglob("variables"))


@pytest.mark.slow
def test_a_network_is_given_where_source_and_settings_say_so(program: Program) -> None:
    with pytest.raises(Refused, match="asks for a network, and gets none here"):
        program.fetch("true", network=True)
    try:
        lines = program.said("cat /proc/net/dev", network=True, container="network").splitlines()[2:]
    except Environment as fault:
        pytest.skip(f"podman gives no network here: {fault.message[-200:]}")
    assert len(lines) > 1
    assert len(program.said("cat /proc/net/dev", container="network").splitlines()[2:]) == 1


@pytest.mark.slow
def test_an_image_that_is_not_here_is_not_fetched(image: str, tmp_path: Path) -> None:
    with pytest.raises(Environment, match="is not on this machine") as caught:
        Program(f"localhost/none@{DIGEST}", tmp_path).fetch("true")
    assert "podman pull localhost/none@sha256:" in (caught.value.hint or "")


def test_a_podman_that_says_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = tmp_path / "podman"
    silent.write_text("#!/bin/sh\nexec sleep 1000\n")
    silent.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda name, **_: str(silent))
    monkeypatch.setattr(containers, "REMOVE_SECONDS", 0.1)
    monkeypatch.setattr("engines.sandbox.container.SECONDS", 0.1)
    step, job = FetchContainer(image=NAMED), Program(NAMED, tmp_path).job()
    with pytest.raises(Environment, match=r"podman ps gave no answer in 0\.1 s"):
        trio.run(fetch, step, job)
    again = tmp_path / "again"
    again.mkdir()
    silent.write_text('#!/bin/sh\n[ "$1" = ps ] || exec sleep 1000\n')
    with pytest.raises(Environment, match=r"podman rm --force gave no answer in 0\.1 s"):
        trio.run(fetch, step, msgspec.structs.replace(job, folder=again))


def checked(tmp_path: Path, network: bool = False, mode: str = "offline", **more: Any) -> None:
    settings = IngestSettings(staging=tmp_path, container=mode, variables={"KEY": "x"})  # type: ignore[arg-type]
    check_fetch(FetchContainer(**{"image": NAMED, **more}), settings, ContainerAccess(network=network))


@pytest.fixture
def podman_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, **_: f"/usr/bin/{name}")


@pytest.mark.parametrize(
    ("more", "rule"),
    [
        ({"mode": "never"}, "fetch-container"),
        ({"network": True}, "fetch-container"),
        ({"image": "alpine"}, "fetch-container"),
        ({"image": "docker.io/alpine:3"}, "fetch-container"),
        ({"image": f"alpine:3@{DIGEST}"}, "fetch-container"),
        ({"image": f"-v@{DIGEST}"}, "fetch-container"),
        ({"image": f"${{{{ env.KEY }}}}@{DIGEST}"}, "fetch-container"),
        ({"command": ()}, "fetch-container"),
        ({"command": ("",)}, "fetch-container"),
        ({"command": ("${{ env.KEY }}",)}, "source-variable"),
        ({"args": ("a\0b",)}, "fetch-container"),
        ({"args": ("a",) * 1025}, "fetch-container"),
        ({"args": ("${{ env.NONE }}",)}, "source-variable"),
        ({"env": (EnvVar(name="A B", value="x"),)}, "fetch-container"),
        ({"env": (EnvVar(name="ODF_ETAG", value="x"),)}, "fetch-container"),
        ({"env": (EnvVar(name="ODF_BATCH_SIZE", value="-42"),)}, "fetch-container"),
        ({"env": (EnvVar(name="NONE", value=None),)}, "source-variable"),
    ],
)
def test_what_is_no_container_of_a_source_is_refused(
    more: dict[str, Any], rule: str, tmp_path: Path, podman_here: None
) -> None:
    with pytest.raises(Fault) as caught:
        checked(tmp_path, **more)
    assert caught.value.rule == rule


def test_what_may_run_is_accepted(tmp_path: Path, podman_here: None, monkeypatch: pytest.MonkeyPatch) -> None:
    env = (EnvVar(name="KEY", value=None), EnvVar(name="ODF_BATCH_SIZE", value="${{ env.KEY }}"))
    checked(tmp_path, args=("${{ env.KEY }}",), env=env, command=("sh",))
    checked(tmp_path, network=True, mode="network")
    monkeypatch.setattr(shutil, "which", lambda name, **_: None)
    with pytest.raises(Refused, match="needs podman, which is not installed"):
        checked(tmp_path)


def test_no_image_of_another_nodes_manifest_runs(tmp_path: Path) -> None:
    """Whatever the settings allow for sources of this node."""
    mine = IngestSettings(staging=tmp_path, container="network")
    assert confine(mine, lambda _: True).container == "never"


def test_no_value_of_a_variable_is_an_argument_of_podman(tmp_path: Path) -> None:
    """Arguments are shown to every user of the machine."""
    job = ContainerJob(
        image=NAMED, command=("a", "b c"), args=("d",), env={"KEY": "hush"}, network=False, owner="x", folder=tmp_path
    )
    words = arguments(job, "n", IngestSettings(staging=tmp_path))
    assert not [word for word in words if "hush" in word]
    assert words[-3:] == ['--entrypoint=["a","b c"]', NAMED, "d"]
    assert {"--network=none", "--pull=never", "--cap-drop=all", "--read-only", "--log-driver=none"} <= set(words)


def test_a_user_without_root_is_the_same_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under a node of root the program is nobody."""
    job = ContainerJob(image=NAMED, command=None, args=(), env={}, network=True, owner="x", folder=tmp_path)
    settings = IngestSettings(staging=tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    words = arguments(job, "n", settings)
    assert words[words.index("--user") + 1] == "65534:65534"
    assert "--userns=keep-id" not in words
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(os, "getegid", lambda: 1001)
    words = arguments(job, "n", settings)
    assert words[words.index("--user") + 1] == "1000:1001"
    assert {"--userns=keep-id", "--network=private"} <= set(words)


def test_what_is_left_is_bounded_in_files(tmp_path: Path) -> None:
    for number in range(65):
        (tmp_path / str(number)).mkdir()
    with pytest.raises(Refused, match="left 65 files and 0 bytes"):
        check_left(tmp_path)


def test_the_example_of_the_page_is_accepted(tmp_path: Path, podman_here: None) -> None:
    (text,) = examples("Container")
    event = source(text)
    settings = IngestSettings(staging=tmp_path, container="network", variables={"KEY": "x"})
    assert check_source(event, settings) is None
    assert fetch_options(event.read.schema) == ContainerAccess(network=True)
    assert check_source(event, msgspec.structs.replace(settings, container="never")) is not None
    assert isinstance(event.fetch, FetchContainer)  # type: ignore[union-attr]
    assert container.BATCH_SIZE not in event.fetch.image  # type: ignore[union-attr]

"""What is loaded before a person has an answer: each of these would take longer than most answers do."""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest

from odfd.cli.commands.ingest_pull import pull_request
from odfd.cli.main import main
from odfd.control import wire
from odfd.errors import ExitCode

CLI = "import odfd.cli.main, odfd.control.client, odfd.cli.commands.{0}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "heavy"),
    [
        (CLI.format("sql"), ("pyarrow", "numpy", "trio", "shutil", "traceback", "msgspec", "inspect")),
        (CLI.format("ingest_pull"), ("pyarrow", "numpy", "trio", "msgspec", "h11", "dataclasses", "inspect")),
        (CLI.format("reading"), ("pyarrow", "numpy", "trio", "shutil", "traceback", "msgspec", "inspect")),
        (CLI.format("node"), ("pyarrow", "numpy", "trio", "msgspec", "h11", "dataclasses", "inspect", "datetime")),
        (
            "import odfd.control.wire as wire; wire.Status",
            ("odfd.control.wire.datasets", "odfd.control.wire.queries", "typing_extensions"),
        ),
        ("import engines.query.worker", ("pandas", "trio", "pyarrow.compute", "pyarrow.parquet")),
    ],
)
def test_few_modules_are_loaded(code: str, heavy: tuple[str, ...]) -> None:
    shown = f"import sys\n{code}\nprint([name for name in {heavy!r} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", shown], check=True, capture_output=True, text=True)
    assert found.stdout.strip() == "[]"


def test_a_program_looks_for_garbage_in_what_a_command_makes_alone(tmp_path: Path) -> None:
    script = (
        f"import gc, sys; sys.argv = ['odfctl', '--socket', {str(tmp_path / 's')!r}, 'status']\n"
        f"from odfd.cli import start; code = start(); print(code, gc.isenabled(), gc.get_freeze_count() > 1000)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "3 True True"


@pytest.mark.slow
def test_a_query_needs_neither_numpy_nor_pandas() -> None:
    """``engines.query`` forbids them."""
    code = "import sys; sys.modules['numpy'] = sys.modules['pandas'] = None\nimport engines.query.worker"
    subprocess.run([sys.executable, "-c", code], check=True)


ITEM = {"ref": "a", "outcome": "up-to-date", "message": "", "blocks": 0, "records": 0}
TASK = {"id": "t1", "kind": "pull", "target": "a", "done": 0, "state": "done", "result": {"items": [ITEM]}}


def answered(listener: socket.socket, *answers: object) -> None:
    for answer in answers:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            body = json.dumps(answer).encode() + b"\n"
            connection.sendall(b"HTTP/1.1 200 \r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))


@pytest.mark.slow
def test_a_whole_pull_loads_no_types(tmp_path: Path) -> None:
    """They take longer than a daemon that has nothing to do."""
    where = tmp_path / "s"
    script = (
        f"import sys; from odfd.cli.main import main\n"
        f"code = main(['--socket', {str(where)!r}, '-q', '-o', 'json', 'pull', 'a'])\n"
        f"print(code, [name for name in ('msgspec', 'h11', 'dataclasses') if name in sys.modules], file=sys.stderr)"
    )
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(where))
        listener.listen()
        listener.settimeout(60)
        server = threading.Thread(target=answered, args=(listener, {"id": "t1", "kind": "pull"}, TASK))
        server.start()
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        server.join()
    assert json.loads(done.stdout) == {"items": [ITEM]}
    assert done.stderr.strip() == "0 []"


def test_what_a_pull_asks_is_of_its_type() -> None:
    every = argparse.Namespace(
        refs=["a", "b"],
        all=True,
        recursive=True,
        repair=True,
        fetch_uncacheable=True,
        as_name="c",
        source="s",
        time="t",
    )
    none = argparse.Namespace(
        refs=["a"],
        all=False,
        recursive=False,
        repair=False,
        fetch_uncacheable=False,
        as_name=None,
        source=None,
        time=None,
    )
    asked = [msgspec.convert(pull_request(args), wire.PullRequest) for args in (every, none)]
    assert asked[0] == wire.PullRequest(
        refs=("a", "b"),
        all=True,
        recursive=True,
        repair=True,
        fetch_uncacheable=True,
        as_name="c",
        source="s",
        time="t",
    )
    assert asked[1] == wire.PullRequest(refs=("a",))


FILES = {
    "a.csv": "id,v\n1,2\n",
    "a.ndjson": '{"id": 1, "v": 2}\n',
    "a.json": '[{"id": 1, "v": 2}]\n',
    "a.geojson": '{"type": "FeatureCollection", "features": [{"type": "Feature", "properties": {"id": 1, "v": 2}, '
    '"geometry": {"type": "Point", "coordinates": [1, 2]}}]}\n',
}


@pytest.mark.parametrize("name", FILES)
def test_a_manifest_is_written_for_a_file_also_without_spark(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A package without the engine looks into files too: what the node then does with the manifest needs it."""
    monkeypatch.setitem(sys.modules, "pyspark", None)
    monkeypatch.setitem(sys.modules, "py4j", None)
    (tmp_path / name).write_text(FILES[name])
    assert main(["new", "cities", str(tmp_path / name), "-O", "-"]) == ExitCode.OK
    assert "kind: DatasetSnapshot" in capsys.readouterr().out

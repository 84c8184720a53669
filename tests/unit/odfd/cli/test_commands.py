"""What commands propose, load, apply and compare."""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import threading
from argparse import Namespace
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, get_args

import duckdb
import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from chain.errors import Invalid
from chain.model.events import MetadataEvent
from odfd.cli import main as main_module
from odfd.cli import registry
from odfd.cli.commands.completions import EVENTS, FILES, Candidate, candidates, words_of
from odfd.cli.commands.diff import _check_columns
from odfd.cli.commands.ingest_pull import pull_request
from odfd.cli.main import command_parser, main
from odfd.cli.session import Session
from odfd.cli.sql.read_options import difference
from odfd.control import wire
from odfd.control.client import MANIFESTS, Answer, ApiCall, ControlClient
from odfd.errors import ExitCode
from worlds.eventually import PATIENCE

# What is proposed at the cursor of a command line, by the parsers themselves and a node that is told here.


def known(source: str, plain: Sequence[str]) -> Iterable[Candidate]:
    names = {"dataset": ("flights", "fleet"), "column": ("carrier",), "column=": ("carrier=",), "name": plain}
    return [Candidate(each, "told") for each in names.get(source, ())]


def proposed(line: str) -> list[str]:
    *before, current = words_of(line)
    entry = registry.entries()[before[0]]
    return [each.word for each in candidates(command_parser(entry), before, current, known)]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("odfctl tail fl", ["flights", "fleet"]),
        ("odfctl tail --records 5 fli", ["flights"]),
        ("odfctl tail flights f", []),
        ("odfctl pull flights f", ["fleet"]),
        ("odfctl mirror ", ["add", "list", "remove", "pause", "resume"]),
        ("odfctl mirror add f", []),
        ("odfctl mirror nothing f", []),
        ("odfctl verify flights --level d", ["data"]),
        ("odfctl verify flights --level=d", ["--level=data"]),
        ("odfctl verify flights --leve", ["--level"]),
        ("odfctl lineage flights --column ", ["carrier"]),
        ("odfctl correct flights --set c", ["carrier="]),
        ("odfctl completions --wor", []),
        ("odfctl ingest flights ", [FILES]),
        ("odfctl status ", []),
        ("odfctl schema f", ["flights", "fleet"]),
        ("odfctl schema alter fl", ["flights", "fleet"]),
        ("odfctl schema alter flights --comp", ["--computed"]),
        ("odfctl schema flights --comp", []),
    ],
)
def test_each_place_proposes_what_fits(line: str, words: list[str]) -> None:
    assert proposed(line) == words


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("odfctl", [""]),
        ("odfctl ", [""]),
        ("odfctl ta", ["ta"]),
        ("odfctl tail 'my da", ["tail", "my da"]),
        ('odfctl sql "select 1" --o', ["sql", "select 1", "--o"]),
        ("odfctl tail a\\ ", ["tail", "a "]),
    ],
)
def test_a_line_is_split_as_a_shell_splits_it(line: str, words: list[str]) -> None:
    assert words_of(line) == words


@pytest.mark.slow
def test_every_command_can_be_completed() -> None:
    for name, entry in registry.entries().items():
        assert candidates(command_parser(entry), [name], "--", known)


def test_events_are_those_of_the_format() -> None:
    assert set(EVENTS) == {each.__struct_config__.tag for each in get_args(MetadataEvent)}


# Commands that make a resource apply the manifest of it, and print it where asked.

PEER = "12D3KooWM57jXdhtZT4ZEcdNbTo5JiKUxMZHg143ugaEYH8CNUMh"
KEY = "did:key:z6Mkqi1cNkNci6HXwDxeeS1aP1neHbnW4CDve788zZwKPkR9"
LISTS = {
    "/net/v1alpha1/networks", "/net/v1alpha1/peers", "/net/v1alpha1/repositories", "/trust/v1alpha1/validators",
}  # fmt: skip
VIEWS: dict[str, Any] = {
    "/net/v1alpha1/networks/demo": {"$schema": "Network", "headers": {"name": "demo"}, "spec": {"bootstrap": []}},
    f"/net/v1alpha1/peers/{PEER}": {
        "$schema": "Peer",
        "headers": {"name": PEER},
        "spec": {"peerId": PEER, "blocked": True},
    },
    f"/trust/v1alpha1/validators/{KEY}": {
        "$schema": "Validator",
        "headers": {"name": KEY},
        "spec": {"did": KEY, "group": "uni"},
    },
}


class Daemon(ControlClient):
    """Answers as one that applies whatever comes."""

    def __init__(self, standing: list[dict[str, Any]]) -> None:
        self.standing = standing
        self.applied: list[dict[str, Any]] = []

    def do(self, call: ApiCall[Any]) -> Any:
        return Answer.of(self.ask(call), call.kind())

    def ask(self, call: ApiCall[Any]) -> Any:
        if (call.method, call.path) == ("POST", "/resource/v1alpha1/apply"):
            assert (call.query, call.media_type) == ({"task": "true"}, MANIFESTS)
            (manifest,) = call.request  # type: ignore[misc]
            self.applied.append(json.loads(manifest.text))
            return {"id": "task"}
        if call.path in LISTS:
            return {"resourceVersion": "f00-1", "items": self.standing}
        assert not call.query
        return VIEWS[call.path]

    def stream_json(self, call: ApiCall[Any], begun: Any = None) -> Any:
        assert (call.path, call.query) == ("/node/v1alpha1/tasks/task", {"follow": "true"})
        manifest = self.applied[-1]
        kind, name = manifest["$schema"].lower(), manifest["headers"]["name"]
        items = [{"kind": kind, "name": name, "action": "created"}]
        yield {"state": "done", "result": {"items": items, "dryRun": False}}


def view(type_: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    headers = {"name": name, "labels": {"team": "x"}, "generation": 3}
    return {"$schema": f"https://example.org/{type_}", "headers": headers, "spec": spec}


@pytest.mark.parametrize(
    ("words", "type_", "spec"),
    [
        (("network", "join", "demo"), "Network", {"bootstrap": []}),
        (("peer", "block", PEER), "Peer", {"peerId": PEER, "blocked": True}),
        (("trust", "validator", "add", KEY, "--group", "uni"), "Validator", {"did": KEY, "group": "uni"}),
        (("repo", "add", "demo", "https://example.org/odf"), "Repository", {"url": "https://example.org/odf"}),
    ],
)
def test_a_command_applies_the_manifest_that_it_prints(
    words: tuple[str, ...], type_: str, spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    daemon = Daemon([])
    monkeypatch.setattr(Session, "client", daemon)
    assert main_module.main([*words, "-v"]) == 0
    (manifest,) = daemon.applied
    assert (manifest["$schema"], manifest["spec"]) == (type_, spec)
    assert yaml.safe_load(capsys.readouterr().err) == manifest
    assert main_module.main([*words, "-q"]) == 0
    assert (daemon.applied[1], capsys.readouterr().err) == (manifest, "")


def test_what_stands_keeps_its_name_and_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = Daemon([view("Validator", "graz", {"did": KEY, "group": "old"})])
    monkeypatch.setattr(Session, "client", daemon)
    assert main_module.main(["trust", "validator", "add", KEY, "--group", "uni", "-q"]) == 0
    (manifest,) = daemon.applied
    assert manifest["headers"] == {"name": "graz", "labels": {"team": "x"}}


def test_what_is_printed_to_be_applied_is_what_is_declared(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Peers that were met are listed too, and nothing can be applied of them."""
    met = view("Peer", PEER, {"peerId": PEER, "blocked": False})
    met["headers"]["generation"] = 0
    declared = view("Peer", "mallory", {"peerId": "12D3KooWX", "blocked": True})
    monkeypatch.setattr(Session, "client", Daemon([met, declared]))
    assert main_module.main(["get", "peers", "-o", "yaml"]) == 0
    assert list(yaml.safe_load_all(capsys.readouterr().out)) == [declared]
    assert main_module.main(["get", "peers", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == [met, declared]


# What is loaded before a person has an answer: each of these would take longer than most answers do.

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
        listener.settimeout(PATIENCE)
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


SAMPLES = {
    "a.csv": "id,v\n1,2\n",
    "a.ndjson": '{"id": 1, "v": 2}\n',
    "a.json": '[{"id": 1, "v": 2}]\n',
    "a.geojson": '{"type": "FeatureCollection", "features": [{"type": "Feature", "properties": {"id": 1, "v": 2}, '
    '"geometry": {"type": "Point", "coordinates": [1, 2]}}]}\n',
}


@pytest.mark.parametrize("name", SAMPLES)
def test_a_manifest_is_written_for_a_file_also_without_spark(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A package without the engine looks into files too: what the node then does with the manifest needs it."""
    monkeypatch.setitem(sys.modules, "pyspark", None)
    monkeypatch.setitem(sys.modules, "py4j", None)
    (tmp_path / name).write_text(SAMPLES[name])
    assert main(["new", "cities", str(tmp_path / name), "-O", "-"]) == ExitCode.OK
    assert capsys.readouterr().out.startswith("$schema: Dataset\n")


# The rows that ``odfctl diff`` shows are those of one bag of rows that the other has not.

ROWS = st.lists(st.tuples(st.none() | st.integers(0, 2), st.none() | st.sampled_from("ab"), st.integers(0, 1)))


@pytest.mark.slow
@given(ROWS, ROWS, st.booleans())
def test_rows_differ_by_how_often_they_are_there(
    one: list[tuple[int | None, str | None, int]], other: list[tuple[int | None, str | None, int]], apart: bool
) -> None:
    with duckdb.connect() as base:
        for name, rows in (("one", one), ("other", other)):
            base.execute(f"CREATE TABLE {name} (a INTEGER, b VARCHAR, c INTEGER)")
            base.executemany(f"INSERT INTO {name} VALUES (?, ?, ?)", rows) if rows else None
        sql = difference("one", "other", apart=' EXCLUDE ("c")' if apart else "")
        found = Counter(base.sql(sql).fetchall())
    left, right = (Counter(row[: 2 if apart else 3] for row in rows) for rows in (one, other))
    expected = Counter({("-", *row): count for row, count in (left - right).items()})
    expected.update({("+", *row): count for row, count in (right - left).items()})
    assert found == expected


def test_columns_are_compared_by_name_and_what_came_later_is_null() -> None:
    with duckdb.connect() as base:
        base.execute(
            "CREATE TABLE one AS SELECT 1 AS a, 2 AS b; CREATE TABLE other AS SELECT 2 AS b, 1 AS a, NULL AS c"
        )
        assert base.sql(difference("one", "other")).fetchall() == []


def test_datasets_of_other_columns_are_refused_with_what_differs() -> None:
    def do(call: Any) -> Any:
        user = {"a": (("x", "Int64"), ("y", "String")), "b": (("x", "String"), ("z", "Int64"))}[
            call.path.split("/")[-2]
        ]
        fields = tuple(
            wire.Column(name=name, type=kind) for name, kind in (*((each, "Int64") for each in "osm"), *user)
        )
        return Namespace(value=wire.Schema(ref="a", fields=fields))

    session: Any = Namespace(client=Namespace(do=do))
    for values in (False, True):
        _check_columns(session, "a", "a", values=values)
        with pytest.raises(Invalid) as caught:
            _check_columns(session, "a", "b", values=values)
        assert caught.value.message == (
            "a and b have different columns: only a has y; only b has z; x is Int64 and String"
        )

"""Files that a person names, what commands read of them, and manifests that are written from a sample."""

from __future__ import annotations

import argparse
import datetime as dt
import gzip
import json
import os
import re
import stat
import tarfile
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chain.codec.manifest import to_builtins
from chain.errors import Environment, Invalid, NotFound, Remote
from chain.model.events import AddPushSource
from chain.model.source import MergeAppend
from chain.statements.keys import SigningKey
from odfd.cli.commands import support
from odfd.cli.commands.apply import read
from odfd.cli.commands.trust import rules_of
from odfd.cli.main import main
from odfd.cli.new_file import NewFile, check_distinct
from odfd.cli.offline.keyfile import KeyFile
from odfd.cli.offline.new import preview
from odfd.cli.offline.sampling.inference import guess_format, markup, read_sample
from odfd.cli.offline.sampling.manifest import manifest_text, proven
from odfd.cli.offline.sampling.text_types import column_of
from odfd.cli.session import Session
from odfd.control import wire
from odfd.control.client import ApiCall
from odfd.errors import Usage
from worlds import foreign_bytes as made
from worlds.full_disk import room_for
from worlds.reading import read_step

# Files that a person names: kept, replaced only on request, complete or absent, and one way to write them.

CLI = Path(__file__).parents[4] / "odfd" / "cli"
OWN_WAYS = {
    "new_file.py",
    "commands/edit.py",  # a draft for the editor
    "commands/page.py",  # an address for a browser, in the user's own folder
    "offline/demo.py",  # the log of the demo's node
    "offline/new.py",  # a download in a folder that is removed
    "sql/output_file.py",  # drafts, which NewFile gives their names
    "sql/shell.py",  # the history, in the user's own folder
}


@pytest.mark.parametrize("is_private", [False, True])
def test_a_file_that_is_there_is_kept(tmp_path: Path, *, is_private: bool) -> None:
    place = tmp_path / "a"
    place.write_text("kept")
    with pytest.raises(Invalid, match="a is there already") as refused:
        NewFile(place, is_private=is_private)
    assert (refused.value.rule, "--replace" in (refused.value.hint or "")) == ("file-exists", not is_private)
    (tmp_path / "nowhere").symlink_to(tmp_path / "none")
    with pytest.raises(Invalid, match="there already"):
        NewFile(tmp_path / "nowhere")
    assert place.read_text() == "kept"


def test_a_file_that_appears_meanwhile_is_kept(tmp_path: Path) -> None:
    file = NewFile(tmp_path / "a")
    with pytest.raises(Invalid, match="there already"), file.writing() as writing:
        writing.writelines([b"ours"] * (tmp_path / "a").write_text("theirs"))
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("a", "theirs")]


def test_it_is_replaced_on_request_where_it_lies_and_keeps_its_mode(tmp_path: Path) -> None:
    place, link = tmp_path / "a", tmp_path / "link"
    place.write_text("old")
    place.chmod(0o640)
    link.symlink_to(place)
    NewFile(link, replace=True).write("neü")
    assert (link.is_symlink(), place.read_bytes()) == (True, "neü".encode())
    assert stat.S_IMODE(place.stat().st_mode) == 0o640
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a", "link"]


def test_an_empty_file_is_written_but_for_a_secret(tmp_path: Path) -> None:
    place = tmp_path / "a"
    place.touch(mode=0o600)
    NewFile(place).write("new")
    assert (place.read_text(), stat.S_IMODE(place.stat().st_mode)) == ("new", 0o600)
    with pytest.raises(Invalid, match="there already"):
        NewFile(place)
    (tmp_path / "b").touch()
    with pytest.raises(Invalid, match="there already"):
        NewFile(tmp_path / "b", is_private=True)


def test_of_a_failure_nothing_is_left(tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.write_text("old")
    for file in (NewFile(tmp_path / "new"), NewFile(old, replace=True)):
        with room_for(0), pytest.raises(Environment, match="cannot write"):
            file.write("more")
        with pytest.raises(ValueError, match="closed"), file.writing() as writing:
            writing.writelines(b"more" for _ in range(2) if writing.close() is None)
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("old", "old")]


def test_a_secret_is_its_owners_from_the_first_byte(tmp_path: Path) -> None:
    with NewFile(tmp_path / "key", is_private=True).writing() as writing:
        (draft,) = tmp_path.iterdir()
        writing.write(b"secret")
        assert stat.S_IMODE(draft.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600


def test_a_place_where_no_file_can_be_is_told_first(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path, tmp_path / "none" / "a", tmp_path / "file" / "a"):
        with pytest.raises(Usage, match="cannot write"):
            NewFile(place)


def test_a_device_is_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    NewFile(pipe).write("rows")
    NewFile(pipe, replace=True).write(" again")
    assert os.read(reader, 99) == b"rows again"
    os.close(reader)
    assert [each.is_fifo() for each in tmp_path.iterdir()] == [True]


def test_two_options_name_two_files(tmp_path: Path) -> None:
    with pytest.raises(Usage, match="--save-pin and --prove name one file"):
        check_distinct(save_pin=NewFile(tmp_path / "a"), prove=NewFile(tmp_path / "a"))
    check_distinct(save_pin=NewFile(tmp_path / "a"), prove=None)


def test_commands_write_files_in_no_other_way() -> None:
    ways = re.compile(r"\.write_text\(|\.write_bytes\(|O_CREAT|open\([^)]*[\"'][wxa]b?[\"']")
    found = {str(path.relative_to(CLI)) for path in CLI.rglob("*.py") if ways.search(path.read_text())}
    assert found <= OWN_WAYS, found - OWN_WAYS


# The file that a dataset's key is kept in away from the node.


@pytest.mark.parametrize("room", range(65))
def test_a_full_disk_leaves_no_part_of_a_key(tmp_path: Path, room: int) -> None:
    seed, path = b"k" * 32, tmp_path / "offline.key"
    with room_for(room), pytest.raises(Environment):
        KeyFile(str(path)).write(seed.hex())
    assert not path.exists()
    KeyFile(str(path)).write(seed.hex())
    assert KeyFile(str(path)).dataset() == str(SigningKey(seed).dataset_id)


# What a file of a network's policy says becomes a request, each part in its place.

KEY = "did:key:z6Mkqi1cNkNci6HXwDxeeS1aP1neHbnW4CDve788zZwKPkR9"
GROUPS = f'groups = [{{name = "one", keys = ["{KEY}"]}}]\n'


def test_validators_and_witnesses_are_told_apart(tmp_path: Path) -> None:
    file = tmp_path / "network.toml"
    file.write_text(
        f'use = "data"\n[validators]\nf = 0\n{GROUPS}[witness]\nquorum = 1\n{GROUPS}[fresh]\nmax-stale = "7d"\n'
    )
    expected = wire.NetworkRulesRequest(
        use="data", f=0, groups={"one": (KEY,)}, max_stale="7d",
        witness=wire.WitnessRulesRequest(quorum=1, groups={"one": KEY}),
    )  # fmt: skip
    assert msgspec.json.encode(rules_of(str(file))) == msgspec.json.encode(expected)


# Manifests that are named by ``-f``: files, folders, pipes, and what cannot be read.

TEXT = "$schema: VariableSet\nheaders: {name: a}\nspec: {variables: {x: '1'}}\n"


def test_a_pipe_is_read_like_standard_input() -> None:
    """As the shell's ``<(…)`` and /dev/stdin are: relative paths in it begin at the working folder."""
    reading, writing = os.pipe()
    try:
        os.write(writing, TEXT.encode())
        os.close(writing)
        (found,) = read(f"/dev/fd/{reading}")
    finally:
        os.close(reading)
    assert (found.text, found.base) == (TEXT, str(Path.cwd()))


def test_a_folder_is_its_manifests_in_order(tmp_path: Path) -> None:
    for name in ("b.yaml", "a.yml", "notes.txt"):
        (tmp_path / name).write_text(TEXT)
    assert [Path(each.source).name for each in read(str(tmp_path))] == ["a.yml", "b.yaml"]
    with pytest.raises(NotFound, match="there is no file"):
        list(read(str(tmp_path / "c.yaml")))


@pytest.mark.parametrize("what", ["iterdir", "open"])
def test_what_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    (tmp_path / "a.yaml").write_text(TEXT)

    def denied(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, what, denied)
    with pytest.raises(Environment, match=r"cannot read .*: Permission denied"):
        list(read(str(tmp_path)))


# What is sent to those who are asked for help: all that can be had, without secrets, or no file at all.

SOURCE = "https://ann:hunter2@example.org/a.csv?token=abc123&day=1#x"


class Daemon:
    def __init__(self, fails: str = "") -> None:
        self.fails = fails

    def raw(self, call: ApiCall[Any]) -> bytes:
        path = call.path
        if path == self.fails:
            raise Remote("it is asleep")
        said: dict[str, Any] = {"path": path, "source": SOURCE} if path == "/flow/v1alpha1/tasks" else {"path": path}
        return json.dumps(said).encode()


def run(monkeypatch: pytest.MonkeyPatch, file: Path, daemon: Daemon) -> int:
    monkeypatch.setattr(support.Session, "client", daemon)
    args = argparse.Namespace(output="table", quiet=False, verbose=False, socket=None, file=file)
    return support._support(Session(args), args)


def read_archive(file: Path) -> dict[str, Any]:
    with tarfile.open(file) as archive:
        return {Path(each.name).name: json.load(archive.extractfile(each)) for each in archive}  # type: ignore[arg-type]


def test_it_holds_what_the_daemon_tells_and_no_secret(monkeypatch: Any, tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "alice.tar.gz"
    assert run(monkeypatch, file, Daemon()) == 0
    found = read_archive(file)
    assert set(found) == {"machine.json", *support._PARTS}
    assert found["tasks.json"]["source"] == "https://********@example.org/a.csv?token=********&day=1#x"
    assert "2 secrets in it masked" in capsys.readouterr().err
    assert file.stat().st_mode & 0o077 == 0


def test_what_cannot_be_had_is_named(monkeypatch: Any, tmp_path: Path, capsys: Any) -> None:
    assert run(monkeypatch, tmp_path / "a.tgz", Daemon("/node/v1alpha1/doctor")) == 1
    assert read_archive(tmp_path / "a.tgz")["missing.json"] == {"doctor.json": "it is asleep"}
    assert "doctor.json is not in it: it is asleep" in capsys.readouterr().err


def test_there_is_a_whole_file_or_none(monkeypatch: Any, tmp_path: Path) -> None:
    (tmp_path / "there.tgz").write_text("mine")
    with pytest.raises(Invalid, match="there already"):
        run(monkeypatch, tmp_path / "there.tgz", Daemon())
    assert (tmp_path / "there.tgz").read_text() == "mine"
    monkeypatch.setattr(tarfile.TarFile, "addfile", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(Environment, match="No space left"):
        run(monkeypatch, tmp_path / "full.tgz", Daemon())
    assert [each.name for each in tmp_path.iterdir()] == ["there.tgz"]


# A manifest that is written from a sample is applied as it stands, reads the sample, and says what was not sure.


@pytest.mark.parametrize(
    "values,ddl,said",
    [
        (["1", "-2", "+3"], "STRING", {}),
        (["1", "-2"], "BIGINT", {}),
        (["01", "2"], "STRING", {}),
        (["1", "2.5"], "DOUBLE", {}),
        (["1.234,5", "7"], "DOUBLE", {"decimal": ",", "thousands": "."}),
        (["0,5"], "DOUBLE", {"decimal": ","}),
        (["1", "n/a"], "BIGINT", {"nulls": ("n/a",)}),
        (["a", "n/a"], "STRING", {"nulls": ()}),
        (["true", "FALSE"], "BOOLEAN", {}),
        (["2024-05-01"], "DATE", {"date": None}),
        (["2024-05-01T00:00:00Z"], "TIMESTAMP", {"unsure": ()}),
        (["31.12.2024", "01.01.2024"], "DATE", {"date": "%d.%m.%Y", "unsure": ()}),
        (["12/31/2024"], "DATE", {"date": "%m/%d/%Y", "unsure": ()}),
        (["31/12/2024 13:00"], "TIMESTAMP", {"timestamp": "%d/%m/%Y %H:%M"}),
        (["13/13/2024"], "STRING", {}),
        ([], "STRING", {}),
    ],
)
def test_columns_are_what_all_values_are(values: list[str], ddl: str, said: dict[str, Any]) -> None:
    found = column_of(values)
    assert found.ddl == ddl
    assert {name: getattr(found, name) for name in said} == said


def test_a_date_of_two_meanings_is_told() -> None:
    (unsure,) = column_of(["01/02/2024", "03/04/2024"]).unsure
    assert "the other way round" in unsure


GERMAN = "Statistik;2024\nday;city name;amount\n01.05.2024;Köln;1.234,50\n13.05.2024;Graz;-\n"
FILES: dict[str, tuple[bytes, list[list[Any]], list[str]]] = {
    "de.csv": (
        GERMAN.encode("cp1252"),
        [[dt.date(2024, 5, 1), "Köln", 1234.5], [dt.date(2024, 5, 13), "Graz", None]],
        ["encoding: cp1252", "skipRows: 1", "# unsure: '-' is taken for no value", "eventTimeColumn: day"],
    ),
    "gap.csv": (
        b"id,seen,known\n1,2024-05-01,2024-05-02\n2,,2024-05-03\n",
        [[1, dt.date(2024, 5, 1), dt.date(2024, 5, 2)], [2, None, dt.date(2024, 5, 3)]],
        ["happened\n", "eventTimeColumn: known"],
    ),
    "gaps.csv": (b"id,seen\n1,2024-05-01\n2,\n", [], ["# unsure: some rows have no seen: the event time is that"]),
    "a.csv.gz": (gzip.compress(b"id,word\n1,a\n2,b\n"), [[1, "a"], [2, "b"]], ["- id BIGINT"]),
    "bare.tsv": (b"1\tx\n2\ty\n", [[1, "x"], [2, "y"]], ["header: false", "# unsure: the first row is taken for data"]),
    "noted.csv": (b"# a\n# b\nid,x\n1,2\n", [[1, 2]], ["comment: '#'"]),
    "list.json": (b'[{"a": 1}]', [[1]], ["kind: Json"]),
    "inner.json": (b'{"result": {"rows": [{"a": 1}]}}', [[1]], ["subPath: result.rows"]),
    "lines.json": (b'{"a": 1}\n{"a": 2}\n', [[1], [2]], ["kind: NdJson"]),
    "two.zip": (
        made.zipped({"a.csv": "n\n1\n", "b.csv": "n\n2\n", "LICENSE": ""}),
        [[1], [2]],
        ["members: '*.csv'", "# unsure: all files *.csv of the zip are read as one batch"],
    ),
    "table.xlsx": (made.xlsx({"S": [["n", "w"], [1, "a"]]}), [[1, "a"]], ["kind: Spreadsheet"]),
    "sheets.xlsx": (
        made.xlsx({"Info": [["A report"]], "Sales": [["day", "n"], ["01.05.2024", 1], ["13.05.2024", 2]]}),
        [[dt.date(2024, 5, 1), 1.0], [dt.date(2024, 5, 13), 2.0]],
        ["sheet: Sales", "# unsure: of the sheets Info, Sales this one is taken", "# unsure: the sheet has it as text"],
    ),
    "total.csv": (
        "Artikel;Menge;Preis\nA;1.200;3,50\nB;80;12,99\nSumme;1.280;\n\n(c) Amt\n".encode("cp1252"),
        [["A", 1200, 3.5], ["B", 80, 12.99]],
        ["skipFooter: 2", "thousands: .", "Menge BIGINT", "# unsure: 1.200 is taken for 1200"],
    ),
    "shop.db": (made.sqlite_file([(1, "a")]), [[1, "a"]], ["kind: Sqlite"]),
    "data.avro": (made.avro(1), [], ["kind: Avro"]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_a_manifest_from_a_sample_reads_it(name: str, tmp_path: Path) -> None:
    data, rows, said = FILES[name]
    path = tmp_path / name
    path.write_bytes(data)
    text = manifest_text("a.b", guess_format(path, name))
    seen = read_sample(path, name, proven(text, "a.b"), 10)
    assert [each in text for each in said] == [True] * len(said), text
    if rows:
        assert [list(row.values()) for row in seen.rows.to_pylist()] == rows


def test_a_preview_reads_by_the_source_as_a_daemon_tells_it(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    """And by a format, and by a look into the file."""
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text("id;price\n1;0,5\n")
    step = read_step("kind: Csv\nheader: true\nseparator: ';'\ndecimal: ','\nddlSchema: [id BIGINT, price DOUBLE]")
    source = to_builtins(AddPushSource(source_name="default", read=step, merge=MergeAppend()))
    session = Session(argparse.Namespace(socket=None, output="json", quiet=False, verbose=False))
    for said, format_, rows in [(source, None, [["1", "0.5"]]), (None, "csv", None), (None, None, [["1", "0.5"]])]:
        if rows is None:
            with pytest.raises(Invalid, match="the header is one column"):
                preview(session, "a.csv", said, format_)
            continue
        assert preview(session, "a.csv", said, format_) == 0
        assert json.loads(capsys.readouterr().out)["rows"] == rows


def test_xml_and_nothing_are_told(tmp_path: Path) -> None:
    for data, rule in [(b"<feed/>", "new-xml"), (b"<!doctype html><p/><p/>", "new-xml"), (b"\n\n", "new-empty")]:
        (tmp_path / "f").write_bytes(data)
        with pytest.raises(Invalid) as told:
            guess_format(tmp_path / "f", "f")
        assert told.value.rule == rule


def test_the_command_writes_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text("id,when\n1,2024-05-01T00:00:00Z\n")
    assert main(["new", "a.b", "a.csv"]) == 0
    assert "a.b.yaml is written" in capsys.readouterr().out
    assert "eventTimeColumn: when" in Path("a.b.yaml").read_text()
    assert main(["new", "a.b", "a.csv"]) == 5
    assert "is there already" in capsys.readouterr().err
    assert main(["new", "a.b", "a.csv", "-O", "-"]) == 0
    assert capsys.readouterr().out.startswith("$schema: Dataset\n")
    assert main(["new", "a.c", "missing.csv"]) == 5
    assert not Path("a.c.yaml").exists()


ITEM = "<item><guid>{0}</guid><title>n{0}</title></item>"


@pytest.mark.parametrize(
    ("text", "record", "doubt"),
    [
        (f"<rss><channel><title>t</title>{ITEM.format(1)}{ITEM.format(2)}</channel></rss>", "rss/channel/item", ""),
        ("<r><a><x/></a><b><x/></b><b/></r>", "r/b", ""),
        ("<r><a/><a/><b/><b/><b/></r>", "r/b", "r/a may be meant"),
        ("<!DOCTYPE r [<!ENTITY e 'x'>]><r><a/><a/></r>", None, ""),
        ("<r><a><a><a>", None, ""),
    ],
)
def test_elements_that_occur_often_are_rows(text: str, record: str | None, doubt: str) -> None:
    if record is None:
        with pytest.raises(Invalid, match="no element occurs twice"):
            markup(text.encode())
        return
    found = markup(text.encode())
    assert found.read == {"kind": "Xml", "record": record}
    assert doubt in found.unsure[0]


@pytest.mark.slow
def test_a_feed_becomes_a_manifest_that_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    items = "".join(ITEM.format(number) for number in range(3))
    Path("feed.xml").write_text(f'<?xml version="1.0"?><rss version="2.0"><channel>{items}</channel></rss>')
    assert main(["new", "feed", "feed.xml"]) == 0
    assert "record: rss/channel/item" in Path("feed.yaml").read_text()
    assert "n2" in capsys.readouterr().out


def test_a_mark_of_the_encoding_is_in_no_name(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"\xef\xbb\xbfid,name\n1,a\n")
    assert [name for name, _, _ in guess_format(tmp_path / "f", "f").columns] == ["id", "name"]


def test_a_column_that_no_dataset_holds_is_told_before_an_ingest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    column = pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64()))
    pq.write_table(pa.table({"id": [1], "m": column}), "nested.parquet")
    assert main(["new", "nested", "nested.parquet"]) == 5
    assert "column 'm' is a map" in capsys.readouterr().err
    assert not Path("nested.yaml").exists()

"""How values are said to people, and what they may ask to wait for."""

from __future__ import annotations

import argparse
import io
import socket
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from chain import instant
from chain.errors import NotFound
from chain.instant import SECOND, Instant
from chain.terminal_text import is_visible
from odfd.cli import formatting, kinds
from odfd.cli.command import seconds
from odfd.cli.commands import rewriting, verify
from odfd.cli.commands.publishing import _outcome_text
from odfd.cli.commands.resources import manifest_text, resolve_names
from odfd.cli.commands.verify import doubt_of, report_text
from odfd.cli.commands.wait import parse_condition
from odfd.cli.main import main
from odfd.cli.offline import recheck
from odfd.cli.offline.files import is_directory
from odfd.cli.progress import Meter, bar, describe
from odfd.cli.resource_tables import conditions_text
from odfd.cli.session import SYSTEM_SOCKET, Session, socket_path
from odfd.cli.table import TableColumn, clean, fields, render, width
from odfd.cli.trust_text import trust_text, witness_lines
from odfd.control import calls, wire
from odfd.control.client import Answer, ControlClient
from odfd.errors import ExitCode, Unreachable, Usage
from odfd.resources import registry
from worlds.clock import FixedClock
from worlds.eventually import PATIENCE


@pytest.mark.parametrize(
    ("value", "said"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (31_200_000, "31.2 MB"), (99_960_000, "100 MB"),
     (999_600, "1.0 MB"), (5e18, "5000 PB"), (None, "-")],
)  # fmt: skip
def test_sizes(value: float | None, said: str) -> None:
    assert formatting.size(value) == said


def test_times() -> None:
    now = instant.parse("2026-11-20T12:00:00Z")
    assert formatting.ago("2026-11-20T11:56:00Z", now) == "4 min ago"
    assert formatting.ago("2026-11-20T11:59:59.5Z", now) == "0 s ago"
    assert formatting.ago("2027-01-01T00:00:00Z", now) == "2027-01-01"
    assert formatting.ago("garbage", now) == "garbage"
    assert formatting.ago(None, now) == "-"
    assert formatting.moment("2013-12-31T00:00:00Z") == "2013-12-31"
    assert formatting.moment("2013-12-31T04:45:00.514Z") == "2013-12-31 04:45:00"


def test_names_of_things() -> None:
    assert formatting.digest("f1620" + "9c41" + "0" * 58 + "b2") == "f1620 9c41…b2"
    assert formatting.digest("sha256:5d1e" + "0" * 58 + "a0") == "sha256:5d1e…a0"
    assert formatting.digest("short") == "short"
    assert formatting.identity("did:odf:fed01a3" + "0" * 59 + "7c") == "did:odf:fed01a3…7c"
    assert formatting.identity("did:key:z6Mkt" + "x" * 40 + "Qe4") == "z6Mkt…Qe4"


def test_tables_line_up_and_hold_no_control_characters() -> None:
    columns: tuple[TableColumn[tuple[str, int | None]], ...] = (
        TableColumn("NAME", lambda row: row[0], most=8),
        TableColumn("N", lambda row: formatting.count(row[1]), right=True),
    )
    text = render(columns, [("日本", 1), ("a\x1b[31m\nb", 336_776), ("a very long name", None)])
    assert text.splitlines() == ["NAME            N", "日本            1", "a�[31m b  336,776", "a very …        -"]
    assert fields([("a", "1"), ("long", "2"), ("none", "")]) == "a     1\nlong  2"


@pytest.mark.slow
@given(st.text(max_size=50), st.integers(1, 30))
def test_a_cell_is_one_printable_line_of_its_width(text: str, most: int) -> None:
    cell = clean(text, most)
    assert len(cell) <= most
    assert is_visible(cell)
    assert len(cell.splitlines()) <= 1
    assert width(cell) <= 2 * len(cell)


def test_progress() -> None:
    task = wire.TaskState(
        kind="mirror", target="flights", state="running", message="slices 9/14",
        done=31_200_000, total=48_000_000, unit="bytes",
    )  # fmt: skip
    assert describe(task, 8.4e6) == (
        "Mirroring flights  slices 9/14  ━━━━━━━━━━━━━┄┄┄┄┄┄┄  31.2 MB of 48.0 MB  8.4 MB/s  2 s left"
    )
    assert describe(wire.TaskState(kind="x", state="waiting"), 0) == "x  waiting for a slot"


class OneSession:
    """What a Meter takes of a session: a clock that the test sets."""

    quiet = False

    def __init__(self) -> None:
        self.clock, self.now = self, 0

    def monotonic(self) -> int:
        return self.now


def test_a_rate_is_told_although_the_message_counts_too() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    session, terminal = OneSession(), Terminal()
    meter = Meter(session, terminal)  # type: ignore[arg-type]
    for step in range(4):
        session.now = step * SECOND
        meter.show(
            wire.TaskState(
                kind="verify", target="flights", state="running", unit="bytes", total=40_000_000,
                done=step * 10_000_000, message=f"blocks {step}/4, slices {step}/4, 0 failures",
            )
        )  # fmt: skip
    assert "30.0 MB of 40.0 MB  10.0 MB/s  1 s left" in terminal.getvalue()


def test_bytes_that_hold_are_no_word_for_what_they_say() -> None:
    """A refuted dataset verifies at level data: its publisher signed exactly these bytes."""
    view = wire.DatasetView(
        name="bad", id="did:odf:x", kind="derivative", blocks=5, state="refuted", rely_on=wire.Reliance(blocks=3)
    )
    assert doubt_of(view) == (
        "its bytes are as published, but it is refuted: this node uses 3 of 5 blocks; odfctl trust show bad says why"
    )
    assert doubt_of(msgspec.structs.replace(view, state="forked", rely_on=None)).count("0 of 5") == 1
    assert doubt_of(msgspec.structs.replace(view, state="fresh")) == ""


def test_a_task_that_is_done_is_at_no_stage() -> None:
    def last(state: str, **more: str) -> str:
        told = {"x/State": {"value": {"kind": "apply", "state": state, **more}}}
        row = wire.ResourceManifest(schema="Task", headers={"name": "t1"}, spec={}, status={"conditions": told})
        return kinds.TASK.columns(Instant(0))[-1].cell(row)

    assert last("running", message="applying") == "applying"
    assert last("failed", message="applying") == "applying"
    assert last("done", message="applying") == ""
    assert last("done", message="applying", finding="row 3 differs") == "row 3 differs"


def test_progress_that_counts_nothing_tells_how_long_it_has_lasted() -> None:
    """An engine at work says no more; the line would look as if all had stopped."""
    task = wire.TaskState(kind="ingest", target="one", state="running", message="computing big.csv")
    assert describe(task, 0, 1.9) == "Ingesting one  computing big.csv"
    assert describe(task, 0, 14.2) == "Ingesting one  computing big.csv  for 14 s"
    counted = msgspec.structs.replace(task, done=5, total=10, unit="files")
    assert "for " not in describe(counted, 0, 14.2)


def test_a_task_that_waits_for_others_is_told_without_a_terminal_too() -> None:
    """After two seconds, and then every five; one that counts something comes later."""
    waits = wire.TaskState(kind="mirror", target="one", state="running", message="asked 2 peers, waiting")
    for task, expected in ((waits, [2, 7, 12]), (msgspec.structs.replace(waits, done=9, unit="bytes"), [5, 10])):
        session, stream = OneSession(), io.StringIO()
        meter = Meter(session, stream)  # type: ignore[arg-type]
        told = []
        for second in range(13):
            session.now = second * SECOND
            before = stream.getvalue()
            meter.show(task)
            told += [second] * (stream.getvalue() != before)
        assert told == expected


def test_a_command_that_waits_says_for_what(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pause before a line is the test's: it is over when the block has seen two lines."""
    monkeypatch.setattr("odfd.cli.session.TOLD_AFTER", 0.001)
    monkeypatch.setattr("odfd.cli.session.AGAIN_AFTER", 0.001)
    lines: list[str] = []
    two = threading.Event()

    def remark(text: str) -> None:
        lines.append(text)
        if len(lines) == 2:
            two.set()

    monkeypatch.setattr("odfd.cli.session.output.remark", remark)
    with Session(spoken(quiet=False)).waiting("dialling"):
        assert two.wait(PATIENCE)
    assert lines[0] == "dialling, for 0.001 s"
    count = len(lines)
    threads = threading.active_count()
    with Session(spoken(quiet=True)).waiting("dialling"):
        assert threading.active_count() == threads
    assert len(lines) == count


def spoken(*, quiet: bool) -> argparse.Namespace:
    return argparse.Namespace(output="table", quiet=quiet, verbose=False, socket=None)


@given(st.floats(-1, 2))
def test_bars_have_one_width(share: float) -> None:
    assert len(bar(share)) == 20


@pytest.mark.parametrize(
    ("condition", "value", "holds"),
    [
        ("exists", {}, True), ("exists", None, False), ("deleted", None, True),
        ("state=fresh", {"state": "fresh"}, True), ("state!=fresh", {"state": "fresh"}, False),
        ("blocks>=15", {"blocks": 15}, True), ("blocks>15", {"blocks": 15}, False),
        ("blocks<=15", {"blocks": 15}, True),
        ("relyOn.blocks >= 14", {"relyOn": {"blocks": 14}}, True), ("relyOn.blocks>=14", {"relyOn": None}, False),
        ("serving=true", {"serving": True}, True), ("serving>true", {"serving": True}, False),
        ("fault=null", {"fault": None}, True), ("records>=1", {"records": None}, False), ("x=1", None, False),
        ("watermark=null", {}, True), ("watermark=null", None, False), ("relyOn.blocks>=14", {}, False),
        ("state!=fresh", {}, True),
    ],
)  # fmt: skip
def test_conditions(condition: str, value: Any, holds: bool) -> None:
    assert parse_condition(condition).holds(value) is holds


@pytest.mark.parametrize("text", ["", "=", "state", "state fresh", "1=2", "state="])
def test_what_is_no_condition(text: str) -> None:
    with pytest.raises(Usage):
        parse_condition(text)


def test_what_cannot_be_compared() -> None:
    with pytest.raises(Usage, match="blocks is a number"):
        parse_condition("blocks>=many").holds({"blocks": 1})
    with pytest.raises(Usage, match="relyOn has parts of its own") as caught:
        parse_condition("relyOn=1").holds({"relyOn": {"blocks": 1}})
    assert caught.value.hint == "name one: relyOn.…"


@pytest.mark.parametrize(
    ("text", "value"), [("90", 90), ("30s", 30), ("5m", 300), ("1.5h", 5400), ("250ms", 0.25), ("1d", 86400)]
)
def test_durations(text: str, value: float) -> None:
    assert seconds(text) == value
    with pytest.raises(Usage):
        seconds(text + "x")


@pytest.mark.parametrize(
    ("output", "printed"),
    [
        ("table", "fresh\n"),
        ("ndjson", '{"state":"fresh","unheardOf":[1]}\n'),
        ("json", '{\n  "state": "fresh",\n  "unheardOf": [\n    1\n  ]\n}\n'),
        ("yaml", "state: fresh\nunheardOf:\n- 1\n"),
    ],
)
def test_programs_are_given_what_the_daemon_sent(output: str, printed: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A newer daemon says more than the types of this version hold."""
    session = Session(argparse.Namespace(output=output, quiet=False, verbose=False, socket=None))
    answer = Answer.of({"state": "fresh", "unheardOf": [1]}, Told)
    session.answer(answer, lambda told: told.state)
    assert capsys.readouterr().out == printed


class Told(wire.Value, frozen=True, kw_only=True):
    state: str


def test_where_the_daemon_is(tmp_path: Any) -> None:
    assert str(socket_path("a", {"ODFD_SOCKET": "b"})) == "a"
    assert str(socket_path(None, {"ODFD_SOCKET": "b"})) == "b"
    assert socket_path(None, {}) == SYSTEM_SOCKET
    places = {"XDG_RUNTIME_DIR": str(tmp_path / "run"), "HOME": str(tmp_path)}
    assert socket_path(None, places) == tmp_path / "run/odfd/control.sock"
    (tmp_path / ".local/state/odfd").mkdir(parents=True)
    (tmp_path / ".local/state/odfd/control.sock").touch()
    assert socket_path(None, places) == tmp_path / ".local/state/odfd/control.sock"


def test_what_looks_like_a_path_is_one() -> None:
    assert all(map(is_directory, ("./x", "/x", "~/x", "./a/b", "a/b/c")))
    assert not any(map(is_directory, ("nyc.flights", "did:odf:fed01", "https://x/y", "alice/cities")))


def test_kinds() -> None:
    assert [kinds.find(word).name for word in ("DS", "Tasks", "net")] == ["dataset", "task", "network"]


def test_a_failed_report_names_block_rule_and_both_values() -> None:
    report = wire.VerifyReport(
        ref="nyc.flights", dataset_id="did:odf:fed01", head=None, level="data", ok=False, blocks=15,
        checked=wire.Checked(blocks=15, slices=12, bytes=1_200_000),
        failures=(
            wire.Failure(
                block=wire.FailedBlock(hash="f1620" + "71ba" + "0" * 60, sequence_number=9),
                rule="slice-physical-hash", message="the bytes differ", expected="f1", actual="f2",
            ),
        ),
    )  # fmt: skip
    assert report_text(report) == (
        "no: 1 of 15 blocks fail at level data\n"
        "  checked 15 blocks, 12 slices, 1.2 MB\n"
        "  #9 f1620 71ba…00  slice-physical-hash  the bytes differ\n"
        "      expected  f1\n"
        "      actual    f2"
    )


def test_witnesses_are_said_with_what_their_operators_need() -> None:
    now = instant.parse("2026-11-20T12:00:00Z")
    stands = wire.WitnessView(witness="k", name="w1", counts=True, size=8, at="2026-11-20T11:56:00Z")
    refuses = wire.WitnessView(
        witness="k", name="witness.example/w2", counts=False, trouble="it does not know this log", log_key="a+b+c"
    )
    lines = [line for each in (stands, refuses) for line in witness_lines(each, now)]
    assert lines == [
        "  Witness w1 cosigned 8 blocks 4 min ago",
        "  Witness witness.example/w2 cosigned nothing (it does not count here): it does not know this log",
        "    Its operator lists the log key a+b+c",
    ]


def test_a_step_that_was_run_again_is_told_with_the_cells_that_differ() -> None:
    cell = {"row": 1, "column": "c", "published": 1, "computed": 2, "context": {"k": "v"}}
    view = {"result": "confirmed", "dataset": "did:odf:fed01", "sequenceNumber": 7, "signedAt": "t", "reason": "why"}
    assert recheck._text({**view, "message": "1 of 3 rows", "cells": [cell]}).splitlines() == [
        "confirmed   did:odf:fed01 #7, signed t",
        "  The published step is wrong; its publisher signed it.",
        "  why",
        "",
        "  #7  1 of 3 rows",
        "      row 1  k=v",
        "      c  published 1  computed 2",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "blocks>=15",
        "state=fresh",
        "relyOn.fact=reproduced",
        "conditions=x",
        "watermark=null",
        "published=true",
        "exists",
    ],
)
def test_conditions_that_can_come_true_are_waited_for(text: str) -> None:
    parse_condition(text).check(wire.ResourceManifest, wire.DatasetState)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("blcks>=15", "blcks"),
        ("relyOn.fct=x", "fct"),
        ("refusedBy.first=x", "first"),
        ("state=done", "fresh, refused, refuted, stale"),
        ("state!=frsh", "fresh, refused, refuted, stale"),
        ("blocks>=many", "a number"),
        ("relyOn.blocks=x", "a number"),
        ("published=yes", "false, true"),
        ("state=null", "fresh, refused, refuted, stale"),
    ],
)
def test_a_condition_that_can_never_come_true_is_refused(text: str, told: str) -> None:
    condition = parse_condition(text)
    with pytest.raises(Usage) as caught:
        condition.check(wire.ResourceManifest, wire.DatasetState)
    assert told in f"{caught.value.message} {caught.value.hint}"


@pytest.mark.parametrize(
    ("owners", "asker", "is_told"),
    [
        (("node",), None, False), (("alice",), "alice", False), (("alice",), None, True), (("alice",), "bob", True),
        (("node", "alice"), "alice", True), (("alice", "bob"), "alice", True),
    ],
)  # fmt: skip
def test_accounts_are_told_where_a_row_is_of_another_than_asks(
    owners: tuple[str, ...], asker: str | None, is_told: bool
) -> None:
    asked = argparse.Namespace(do=lambda _call: argparse.Namespace(value=wire.AccountView(name=asker)))
    session: Any = argparse.Namespace(client=asked, clock=FixedClock(Instant(0)))
    rows = [
        wire.ResourceManifest(schema="Dataset", headers={"name": "a", "account": {"id": each, "name": each}})
        for each in owners
    ]
    head = kinds.DATASET._table(rows, session).splitlines()[0].split()
    assert head[:2] == (["NAME", "ACCOUNT"] if is_told else ["NAME", "KIND"])


def test_an_optional_column_is_there_once_a_row_has_something_in_it() -> None:
    columns: tuple[TableColumn[tuple[str, str | None]], ...] = (
        TableColumn("PEER", lambda row: row[0]),
        TableColumn("NAME", lambda row: row[1] or formatting.NOTHING, optional=True),
        TableColumn("STATE", lambda _: "away"),
    )
    assert render(columns, [("a", None), ("b", "")]).splitlines() == ["PEER  STATE", "a     away", "b     away"]
    assert render(columns, [("a", None), ("b", "Graz")]).splitlines()[0] == "PEER  NAME  STATE"
    assert render(columns, []) == "PEER  STATE"


def test_a_node_is_told_by_enough_of_its_id_and_then_its_name() -> None:
    peer = "12D3KooWEyopopk2Ka2tf5fvGDPQEbYWrSnWFk8T9Bks5pZuWnaz"
    assert formatting.node(wire.PeerName(peer_id=peer, name="Graz")) == "12D3KooWEyop…5pZuWnaz Graz"
    assert formatting.node(wire.PeerName(peer_id=peer)) == "12D3KooWEyop…5pZuWnaz"
    assert formatting.node(None) == "-"


def test_incidents_of_the_past_are_told_and_counted() -> None:
    past = tuple(wire.IncidentView(at="2026-01-01T00:00:00Z", kind="damage.found", message="\x1b[2J") for _ in range(7))
    view = wire.TrustView(
        ref="a", dataset_id="did:odf:f", blocks=1, reach=wire.Reach(use=1, serve=1), facts=wire.TrustFacts(), past=past
    )
    text = trust_text(view, Instant(1767312000 * 10**9), "odfctl")
    assert text.count("1 d ago: damage.found") == 5
    assert "2 older incidents: -o json lists them" in text
    assert "\x1b" not in text


def test_an_id_of_a_dataset_says_its_kind() -> None:
    assert kinds.parse_names("dataset", ["secret"]) == (kinds.DATASET, ["secret"]), "a name may be that of a kind"
    assert kinds.parse_names("did:odf:fed01ab", ["weather"]) == (kinds.DATASET, ["did:odf:fed01ab", "weather"])
    with pytest.raises(Usage, match="there is no kind 'did:key:z6Mk'"):
        kinds.parse_names("did:key:z6Mk", [])


def test_a_kind_is_left_out_before_a_name_that_one_thing_has() -> None:
    def named(type_: str, name: str) -> wire.ResourceManifest:
        return wire.ResourceManifest(schema=f"https://odf.example/{type_}", headers={"name": name})

    things = [named("Dataset", "sales"), named("Mirror", "rain"), named("Dataset", "rain")]

    class Client:
        def do(self, call: Any) -> Answer[Any]:
            assert call.path == "/resource/v1alpha1/resources"
            return Answer(things, [])

    session: Any = argparse.Namespace(client=Client())
    assert resolve_names(session, "Sales", []) == (kinds.DATASET, ["Sales"])
    assert resolve_names(session, "dataset", ["sales"]) == (kinds.DATASET, ["sales"])
    with pytest.raises(Usage, match="2 things are named rain") as several:
        resolve_names(session, "rain", [])
    assert several.value.hint == "say which: mirror rain or dataset rain"
    for word, names in (("nothing", []), ("sales", ["more"])):
        with pytest.raises(Usage, match="there is no kind"):
            resolve_names(session, word, names)


def test_a_pattern_means_all_of_a_name_whatever_accounts_have_them() -> None:
    def dataset(name: str, id_: str) -> wire.ResourceManifest:
        return wire.ResourceManifest(schema="https://odf.example/Dataset", headers={"name": name, "id": id_})

    rows = [dataset("rain", "1"), dataset("sales", "2"), dataset("sales", "3")]

    class Client:
        def do(self, call: Any) -> Answer[Any]:
            found = rows if dict(call.query)["name"] == "%a%" else []
            return Answer(wire.ResourceList(items=found, resource_version="1"), {"items": []})  # type: ignore[arg-type]  # what was sent

    session: Any = argparse.Namespace(client=Client())
    assert kinds.meant_by(session, kinds.DATASET, ["%a%"]) == ["rain", "2", "3"]
    assert kinds.datasets_meant(session, ["rain", "%a%", "archive/a_b"]) == ("rain", "2", "3", "archive/a_b")
    with pytest.raises(NotFound, match="no dataset has a name like 'x%'"):
        kinds.datasets_meant(session, ["rain", "x%"])


def test_commands_about_several_take_patterns_and_those_about_one_refuse_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names, done = ("rain", "sales"), list[str]()
    rows = [wire.ResourceManifest(schema="Dataset", headers={"name": each, "id": each}) for each in names]

    class Client:
        def do(self, call: Any) -> Answer[Any]:
            if "name" in dict(call.query):
                return Answer(wire.ResourceList(items=rows, resource_version="1"), {"items": [{}, {}]})  # type: ignore[arg-type]  # what was sent
            done.append(call.path)
            return Answer(rows[names.index(call.path.split("/")[-2])], {})

    def submit(_session: Session, call: Any, made: Any) -> Answer[Any]:
        done.append(call.path)
        if made is wire.VerifyReport:
            return Answer(report(call.path), {})
        kept = wire.RewriteResult(ref=call.path, dataset_id="", action="compact", outcome="unchanged", kept=1,
                                  before=1, blocks=1)  # fmt: skip
        return Answer(kept, {})

    def report(path: str) -> wire.VerifyReport:
        checked = wire.Checked(blocks=1, slices=0, bytes=0, transforms=0)
        return wire.VerifyReport(ref=path, dataset_id="", head=None, blocks=1, level="data", ok="rain" in path,
                                 checked=checked)  # fmt: skip

    for module in (verify, rewriting):
        monkeypatch.setattr(module, "submit", submit)
    monkeypatch.setattr(verify, "read_of", lambda _session, ref, _args: ref)
    monkeypatch.setattr(kinds, "dataset_view", lambda *_: argparse.Namespace(state="fresh"))
    monkeypatch.setattr(Session, "client", Client())
    for line, code in (("verify %a%", ExitCode.NO), ("compact %a%", ExitCode.OK), ("flow pause %a%", ExitCode.OK)):
        done.clear()
        assert main(line.split()) == code
        assert [name for name in names for path in done if f"/{name}/" in path] == list(names), line
        assert len(capsys.readouterr().out.splitlines()) >= len(names)
    for line, told in (("wait dataset %a% --for exists", "one dataset"), ("rename flow/a_ b", "one flow")):
        assert main(line.split()) == ExitCode.USAGE
        assert f"takes the name of {told}, and " in capsys.readouterr().err


def test_a_list_tells_of_what_waits_for_its_deletion(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    conditions = {"https://w3id.org/x/Deleting": {"value": True, "code": "volume-away", "message": "it is away"}}
    gone = wire.ResourceManifest(
        schema="PersistentVolume", headers={"name": "cold"}, status={"phase": "Ready", "conditions": conditions}
    )

    class Client:
        def do(self, _call: Any) -> Answer[Any]:
            return Answer(wire.ResourceList(items=(), resource_version="1", deleting=(gone,)), {"items": []})

    monkeypatch.setattr(Session, "client", Client())
    assert main(["get", "volumes"]) == ExitCode.OK
    told = capsys.readouterr()
    assert "persistentvolume cold is deleted, and not undone yet: it is away (volume-away)" in told.err
    assert main(["get", "volumes", "-o", "name"]) == ExitCode.OK
    assert not capsys.readouterr().out


def test_manifests_of_all_are_those_of_what_was_declared() -> None:
    def task(name: str, generation: int, account: str) -> wire.ResourceManifest:
        headers = {"name": name, "createdAt": "", "generation": generation, "account": {"id": "1", "name": account}}
        return wire.ResourceManifest(schema="Task", headers=headers, spec={"kind": "Verify"})

    rows = (task("declared", 1, "alice"), task("of-a-command", 0, "alice"), task("declared", 1, "bob"))

    class Client:
        def do(self, call: Any) -> Answer[Any]:
            if call.path.endswith("/self"):
                return Answer(argparse.Namespace(name="alice"), {})
            return Answer(wire.ResourceList(items=rows, resource_version="1"), {"items": [{}] * len(rows)})

    session: Any = argparse.Namespace(client=Client(), output="manifest")
    shown = [yaml.safe_load(each)["headers"] for each in manifest_text(session, kinds.TASK, None).split("---\n")]
    assert shown == [{"name": "declared"}, {"name": "declared", "account": "bob"}]


def test_what_is_published_and_unsigned_is_not_called_done() -> None:
    view = wire.VisibilityView(name="sales", id="did:odf:fed01", published=True, changed=True)
    assert _outcome_text(view) == "published"
    unsigned = msgspec.structs.replace(view, unsigned=True)
    assert _outcome_text(unsigned) == "published, but its head is not signed"
    assert _outcome_text(msgspec.structs.replace(unsigned, changed=False)) == _outcome_text(unsigned)


def test_a_daemon_that_is_silent_is_told_while_it_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that was stopped: its socket takes connections."""
    monkeypatch.setattr("odfd.control.client.SILENT_SECONDS", 0)
    said: list[str] = []
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        server.listen()

        def told(text: str) -> None:
            said.append(text)
            server.accept()[0].close()

        with pytest.raises(Unreachable, match="went away"):
            ControlClient(tmp_path / "s", told=told).ask(calls.about_status())
    assert said == [f"no answer from the daemon at {tmp_path / 's'} yet; waiting for it"]


def test_conditions_that_tell_several_things_are_not_cut_down_to_one() -> None:
    conditions = {
        f"{registry.ODF}/flows/v1alpha1/FlowRunStatus": {"status": "Finished", "tasks": []},
        f"{registry.ODF}/flows/v1alpha1/FlowRunActivationCauses": {"activationCauses": []},
        f"{registry.OURS}/flow/v1alpha1/RunOutcome": {"kind": "Success"},
        f"{registry.OURS}/resource/v1alpha1/Synced": {"value": False},
    }
    conditions["https://w3id.org/odfd/schemas/storage/v1alpha1/Usage"] = {"value": {"bytes": 0, "slices": 0}}
    assert conditions_text({"conditions": conditions}) == "FlowRunStatus=Finished,RunOutcome=Success,Synced=false"

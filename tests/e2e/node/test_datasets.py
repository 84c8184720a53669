"""Datasets of real daemons: fresh, altered, rewritten, shown and watched, whatever is killed; and logs of a chain."""

from __future__ import annotations

import json
import os
import random
import signal
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any, Final

import pytest

from chain.store.layout import DirectoryChain
from odfd.cli.kinds import with_state
from odfd.control import calls, wire
from odfd.control.client import ControlClient
from odfd.errors import Unreachable
from odfd.ingest.clients.evm import parse_event, selector
from worlds import manifests
from worlds.daemons import Daemon
from worlds.eventually import PATIENCE, until
from worlds.evm import MINTED, chain_served
from worlds.forked import Forked
from worlds.manifests import BOTH
from worlds.ports import free_port

# A node that is killed again and again keeps its datasets fresh without a word, and nothing comes twice.


pytestmark = pytest.mark.e2e
FRESH_FILES = 6
FRESH_ROWS = 2000
STEPS_OF_A_PULL = 8
"""Durable steps of a pull, at least."""
FLOW = """$schema: Flow
headers: {name: poll}
spec:
  target: Dataset:cities
  triggers: [{kind: Interval, interval: 1s}]
"""


def test_what_was_declared_appears_over_kills(make_daemon: Callable[..., Any]) -> None:
    rng = random.Random(20)
    alice = make_daemon(ODFD_FLOWS_FOLLOW="true", ODFD_FLOWS_COOLDOWN_SECONDS="1", small=True)
    alice.start()
    (alice.folder / "m.yaml").write_text(f"{BOTH}---\n{FLOW}")
    assert {item["action"] for item in alice.ask("apply", "-f", str(alice.folder / "m.yaml"))["items"]} == {"created"}
    for number in range(FRESH_FILES):
        if number % 2:
            alice.kill()
            alice.more["KILL_AT"] = str(rng.randint(1, STEPS_OF_A_PULL))
            alice.start()
            del alice.more["KILL_AT"]
        rows = [f"2024-01-{number + 1:02}T00:00:00Z,c{row * 7919 % 10007},{row}" for row in range(FRESH_ROWS)]
        (alice.folder / f"{number:02}.csv").write_text("\n".join(["event_time,city,population", *rows, ""]))
        if number % 2:
            assert alice.process is not None
            assert alice.process.wait(PATIENCE) == -signal.SIGKILL, "the flow took the file, and died of it"
            alice.process = None
            alice.start()
    for name in ("cities", "towns"):
        alice.ask(
            "wait", "dataset", name, "--for", f"records>={FRESH_FILES * FRESH_ROWS}", "--timeout", f"{PATIENCE:.0f}s"
        )
    assert {one["records"] for one in alice.datasets()} == {FRESH_FILES * FRESH_ROWS}
    assert alice.ask("verify", "towns")["ok"]
    flows = {one["headers"]["name"]: with_state(one) for one in alice.ask("get", "flows")}
    assert set(flows) == {"poll", "towns"}
    assert {one["failures"] for one in flows.values()} == {0}
    assert alice.stop() == 0


# A query changed under way, through a real daemon, engine and ``odfctl``: apply, pull, verify.


DAILY = (
    "select time_bucket(interval '1' day, event_time) as event_time, sum(population) as people from cities group by 1"
)
DOUBLED = DAILY.replace("sum(population)", "sum(population * 2)")
MONTHLY = DAILY.replace("'1' day", "'1' month").replace("people", "inhabitants")


def write(daemon: Any, day: int) -> None:
    rows = [f"2024-01-{day:02}T{hour:02}:00:00Z,c{hour},{hour}" for hour in range(3)]
    (daemon.folder / f"{day}.csv").write_text("\n".join(["event_time,city,population", *rows, ""]))


def apply(daemon: Any, query: str) -> Any:
    text = manifests.DERIVED.replace("select * from cities", query)
    (daemon.folder / "towns.yaml").write_text(text)
    return daemon.ctl("apply", "-f", str(daemon.folder / "towns.yaml"), "-o", "json")


def test_a_new_query_takes_over_and_every_range_is_reproduced(make_with_spark: Callable[..., Any]) -> None:
    alice = make_with_spark("a").start()
    (alice.folder / "cities.yaml").write_text(manifests.ROOT)
    for day in (1, 2, 3):
        write(alice, day)
    alice.ask("apply", "-f", str(alice.folder / "cities.yaml"))
    assert apply(alice, DAILY).json["items"][0]["action"] == "created"
    alice.ask("pull", "--all")
    assert [row[4] for row in alice.ask("tail", "towns")["rows"]] == [3, 3]

    assert apply(alice, DOUBLED).json["items"][0]["changes"] == ["SetTransform"]
    for day in (4, 5):
        write(alice, day)
    alice.ask("pull", "--all")
    assert [row[4] for row in alice.ask("tail", "towns")["rows"]] == [3, 3, 6, 6]
    assert alice.ask("verify", "towns", "--level", "reproduced")["checked"]["transforms"] == 2

    said = apply(alice, MONTHLY)
    assert said.code == 4
    assert "(rule transform-evolution)" in said.err
    assert "odfctl reset towns '#1'" in said.err
    assert alice.ask("reset", "towns", "#1", "--yes")["blocks"] == 2
    assert apply(alice, MONTHLY).json["items"][0]["changes"] == ["SetTransform"]
    (alice.folder / "cities.yaml").write_text(manifests.ROOT)
    (alice.folder / "6.csv").write_text("event_time,city,population\n2024-02-02T00:00:00Z,c1,1\n")
    alice.ask("pull", "--all")
    assert [row[4] for row in alice.ask("tail", "towns")["rows"]] == [15]
    assert alice.ask("verify", "towns", "--level", "reproduced")["ok"]


def test_nothing_is_made_under_the_pin_of_an_engine_that_is_not_here(make_with_spark: Callable[..., Any]) -> None:
    alice, made_up = make_with_spark("a").start(), "sha256:" + "d" * 64
    (alice.folder / "cities.yaml").write_text(manifests.ROOT)
    write(alice, 1)
    alice.ask("apply", "-f", str(alice.folder / "cities.yaml"))
    text = manifests.DERIVED.replace("engine: spark", f"engine: spark\n        version: '{made_up}'")
    (alice.folder / "towns.yaml").write_text(text)
    refused = alice.ctl("apply", "-f", str(alice.folder / "towns.yaml"))
    assert (refused.code, "(rule engine-not-here)" in refused.err, "--force" in refused.err) == (4, True, True)
    forced = alice.ctl("apply", "--force", "-f", str(alice.folder / "towns.yaml"))
    assert (forced.code, "nothing is computed until it is (rule engine-changed)" in forced.err) == (0, True)
    pulled = alice.ctl("pull", "--all")
    assert (pulled.code, "(rule engine-changed)" in pulled.err) == (4, True), pulled.err
    assert "odfctl engine prove towns" in pulled.err
    told = alice.ctl("doctor").out
    assert "odfctl engine prove towns" in told
    assert "blocked" in alice.ctl("status").out
    assert "blocked" in alice.ctl("get", "datasets").out
    assert "it is another here" in alice.ctl("describe", "dataset", "towns").out
    proven = alice.ctl("engine", "prove", "towns")
    digest = with_state(alice.ask("get", "engine", "spark"))["digest"]
    assert (proven.code, made_up in proven.out, digest in proven.out) == (0, True, True), proven.out
    assert alice.ctl("pull", "--all").code == 0
    assert len(alice.ask("tail", "towns")["rows"]) == 3
    assert alice.ask("verify", "towns", "--level", "reproduced")["ok"]
    assert "blocked" not in alice.ctl("status").out


# Another history through real daemons and ``odfctl``: every record stays, mirrors follow, and disk is freed.


FILES, ROWS = 4, 3000
"""Slices are larger than what the database takes in: they are files."""
STEPS = 12
"""Durable steps of a rewrite, at least."""


def published(daemon: Any) -> list[Any]:
    """Two datasets, the root of four slices; its records."""
    for number in range(FILES):
        rows = [f"2024-01-{number + 1:02}T00:00:00Z,c{row * 7919 % 10007},{row}" for row in range(ROWS)]
        (daemon.folder / f"{number}.csv").write_text("\n".join(["event_time,city,population", *rows, ""]))
    (daemon.folder / "m.yaml").write_text(manifests.BOTH)
    daemon.ask("apply", "-f", str(daemon.folder / "m.yaml"))
    pulled = {item["ref"]: item["outcome"] for item in daemon.ask("pull", "--all")["items"]}
    assert pulled["cities"] == "updated"
    assert pulled["towns"] in ("updated", "up-to-date"), "it follows its input, and may have been quicker"
    return records(daemon, "cities")


def records(daemon: Any, name: str) -> list[Any]:
    rows = daemon.ask("tail", name, "-n", "10000")["rows"]
    assert len(rows) == min(FILES * ROWS, 10_000)
    return list(rows)


def objects(daemon: Any) -> dict[str, int]:
    """Files of objects, and their sizes."""
    files = [path for path in (daemon.state / "objects").glob("[0-9a-f][0-9a-f]/*") if path.is_file()]
    return {path.name: path.stat().st_size for path in files}


def test_compaction_reset_and_collection(make_with_spark: Callable[..., Any]) -> None:
    """With the real engine."""
    alice = make_with_spark("a", ODFD_NODE_COLLECT_HOURS="0").start()
    rows = published(alice)
    before, old = alice.dataset("cities"), objects(alice)
    planned = alice.ctl("compact", "cities", "--max-slice-rows", "20000", "--dry-run")
    assert planned.out.startswith("cities: 7 blocks would become 4, the first 3 as they were\n"), planned
    assert objects(alice) == old
    done = alice.ask("compact", "cities", "--max-slice-rows", "20000")
    assert (done["outcome"], done["merged"], done["into"], done["epoch"]) == ("rewritten", FILES, 1, 1)
    assert records(alice, "cities") == rows
    report = alice.ask("verify", "cities", "--level", "data", "--full")
    assert (report["ok"], report["checked"]["slices"]) == (True, 1)
    after = alice.dataset("cities")
    assert (after["records"], after["blocks"]) == (before["records"], before["blocks"] - FILES + 1)
    assert alice.ask("trust", "show", "cities")["reach"]["use"] == after["blocks"]

    said = alice.ctl("pull", "towns")
    assert said.code == 4
    assert "(rule input-diverged)" in said.err
    assert "odfctl compact towns --keep-metadata-only" in said.err
    assert alice.ask("compact", "towns", "--keep-metadata-only", "--yes")["outcome"] == "rewritten"
    assert alice.ask("pull", "towns")["items"][0]["records"] == FILES * ROWS
    assert alice.ask("verify", "towns", "--level", "reproduced")["ok"]

    assert alice.ask("gc")["objects"] == 0, "the old slices were read a moment ago"
    plan = alice.ask("gc", "--dry-run")
    assert plan["objects"] >= FILES
    freed = {each["name"]: each["size"] for each in plan["listed"]}
    there = objects(alice)
    assert set(old) <= set(there)
    done = alice.ask("gc")
    assert (done["objects"], done["bytes"]) == (plan["objects"], plan["bytes"])
    assert objects(alice) == {name: size for name, size in there.items() if name not in freed}
    assert not set(old) & set(objects(alice))
    assert records(alice, "cities") == rows
    assert alice.ask("verify", "cities", "--level", "data", "--full")["ok"]

    said = alice.ctl("reset", "cities", "#99")
    assert (said.code, said.err) == (5, "error: there is no block #99\n  the chain has 4 blocks  (rule block-number)\n")
    said = alice.ctl("reset", "cities", "#3")
    assert said.code == 5
    assert "block #3 is the head" in said.err
    assert alice.ask("reset", "cities", "#2", "--yes")["blocks"] == 3
    assert alice.dataset("cities")["records"] in (0, None)
    assert alice.ask("pull", "cities")["items"][0]["records"] == FILES * ROWS
    assert [row[3:] for row in records(alice, "cities")] == [row[3:] for row in rows]
    assert alice.stop() == 0


def is_signed(alice: Any, blocks: int, epoch: int) -> bool:
    """Whether the head of an epoch is: after a kill that may be a moment after the start (ADR 3)."""
    shown = alice.ask("trust", "show", "cities")
    return (shown["reach"]["use"], shown["epoch"]) == (blocks, epoch)


@pytest.mark.parametrize("seed", range(int(os.environ.get("ODF_SOAK", "2"))))
def test_a_rewrite_that_is_killed_is_done_or_not(make_daemon: Callable[..., Any], seed: int) -> None:
    """Whatever the moment: one history or the other, its head signed, every record there; and work goes on."""
    lot = random.Random(seed)
    alice = make_daemon("a", small=True)
    alice.start()
    rows = published(alice)
    before = alice.dataset("cities")["blocks"]
    kills = 0
    for _ in range(3):
        alice.kill()
        alice.more["KILL_AT"] = str(lot.randint(1, STEPS))
        alice.start()
        del alice.more["KILL_AT"]
        request = wire.RewriteRequest(action="compact", max_slice_rows=20000)
        with suppress(Unreachable):  # it may be killed before it has answered
            ControlClient(alice.socket).do(calls.rewriting_rewrite("cities", request))
        assert alice.process.wait(PATIENCE) == -signal.SIGKILL
        alice.process = None
        kills += 1
        alice.start()
        probes = {probe["name"]: probe["result"] for probe in alice.ask("doctor")}
        assert {probes["database"], probes["trust ledger"]} == {"ok"}, probes
        held = alice.dataset("cities")
        assert held["blocks"] in (before, before - FILES + 1)
        rewritten = held["blocks"] < before
        until(partial(is_signed, alice, held["blocks"], epoch=int(rewritten)))
        assert records(alice, "cities") == rows
        assert alice.ask("verify", "cities", "--full")["ok"]
        if rewritten:
            break
    assert kills
    alice.ask("compact", "cities", "--max-slice-rows", "20000")
    assert alice.dataset("cities")["blocks"] == before - FILES + 1
    assert records(alice, "cities") == rows
    assert alice.ask("reset", "cities", "#2", "--yes")["epoch"] == 2
    assert alice.stop() == 0


def test_a_mirror_follows(make_daemon: Callable[..., Any]) -> None:
    """Two daemons with the small engine: policy says follow, and the mirror turns with each epoch."""
    alice = make_daemon("a", listens=True)
    bob = make_daemon("b", listens=True, ODFD_POLICY_REWRITE_FOLLOW="follow")
    for daemon in (alice, bob):
        daemon.small = True
        daemon.start()
    rows = published(alice)
    cities = alice.dataset("cities")["id"]
    alice.ask("network", "join", "n")
    bob.ask("network", "join", "n", "--bootstrap", alice.ask("status")["listen"][0])
    assert with_state(bob.ask("mirror", "add", cities, "--as", "theirs"))["state"] == "current"
    assert records(bob, "theirs") == rows
    said = bob.ctl("compact", "theirs")
    assert said.code == 4
    assert "theirs is not published by this node" in said.err
    for words in (
        ("compact", "cities"),
        ("compact", "cities", "--max-slice-rows", "20000"),
        ("reset", "cities", "#2", "--yes"),
    ):
        done = alice.ask(*words)
        if done["outcome"] == "unchanged":
            continue
        waited = bob.ctl(
            "wait", "dataset", "theirs", "--for", f"head={done['head']}", "--timeout", f"{PATIENCE:.0f}s", "-q"
        )
        assert waited.code == 0, (waited, bob.told()[-2000:])
        assert bob.ask("verify", "theirs")["ok"]
        shown = bob.ask("trust", "show", "theirs")
        assert (shown["epoch"], shown["reach"]["use"]) == (done["epoch"], done["blocks"])
    assert bob.dataset("theirs")["blocks"] == 3
    assert bob.stop() == alice.stop() == 0


# A dataset's block, shown by the daemon, is the manifest that gives the same bytes again.


def test_a_block_of_a_dataset_is_encoded_again(make_daemon: Callable[..., Any], golden: Path, tmp_path: Path) -> None:
    daemon = make_daemon(small=True).start()
    daemon.ask("import", str(golden / "airlines"), "--as", "airlines")
    for number, raw in enumerate(DirectoryChain(golden / "airlines").raw_blocks(0, 3)):
        said = daemon.ctl("block", "show", f"airlines@#{number}", "-o", "yaml")
        assert said.code == 0, said
        (tmp_path / "b.yaml").write_text(said.out)
        daemon.ctl("block", "encode", str(tmp_path / "b.yaml"), "-O", str(tmp_path / "b"), "--replace")
        assert (tmp_path / "b").read_bytes() == raw


# Watches of ``odfctl`` go on over ``kill -9`` of the daemon: nothing is left out, nothing comes twice.


BEFORE: Final = ("a", "b")
SAYING: Final = ("get", "events", "watch", "wait")
AFTER: Final = ("c", "d")


def apply_set(daemon: Any, name: str) -> None:
    manifest = daemon.folder / f"{name}.yaml"
    manifest.write_text(f"$schema: VariableSet\nheaders: {{name: {name}}}\nspec: {{variables: {{x: '1'}}}}\n")
    daemon.ask("apply", "-f", str(manifest))


def started(daemon: Daemon, ends: ExitStack, *words: str) -> tuple[Forked, IO[str]]:
    """Starts ``odfctl`` at a daemon; what it says can be read."""
    reading, writing = os.pipe()
    said = ends.enter_context(os.fdopen(reading))
    with os.fdopen(writing, "wb") as out, (daemon.folder / f"{words[0]}.err").open("wb") as err:
        process = daemon.begin(*words, out=out, err=err)
    ends.callback(process.kill)
    return process, said


def made(lines: Iterator[dict[str, Any]], is_made: Callable[[dict[str, Any]], str], last: str) -> list[str]:
    """The names that are told to be made, until ``last`` is."""
    found: list[str] = []
    for line in lines:
        if name := is_made(line):
            found.append(name)
            if name == last:
                return found
    raise AssertionError(f"the watch ended after {found}")


def has_asked_in_vain(address: str) -> bool:
    """Whether the daemon told anybody that something is not there, as it tells who waits for it."""
    with urllib.request.urlopen(f"http://{address}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    told = [line for line in lines if line.startswith("odfd_http_responses_total{")]
    (count,) = [line.split()[-1] for line in told if 'code="4xx"' in line and 'server="control"' in line]
    return float(count) > 0


def in_listing(line: dict[str, Any]) -> str:
    return str(line["object"]["headers"]["name"]) if line["op"] == "Added" else ""


def in_history(line: dict[str, Any]) -> str:
    return str(line["name"]) if line["change"] == "Created" and line["type"] == "VariableSet" else ""


def in_events(line: dict[str, Any]) -> str:
    return (
        str(line["subject"])
        if line["kind"] == "resource.created"
        else str(line["message"]) * (line["kind"] == "lagged")
    )


def test_watches_go_on_when_the_daemon_is_killed_and_started(make_daemon: Callable[..., Daemon]) -> None:
    metrics = f"127.0.0.1:{free_port()}"
    daemon = make_daemon("a", ODFD_METRICS_LISTEN=metrics, small=True)
    daemon.start()
    apply_set(daemon, BEFORE[0])
    seen = (("get", "vs", "-w", in_listing), ("events", "-w", in_history), ("watch", "--since", "0", in_events))
    with ExitStack() as ends:
        watches = [(*started(daemon, ends, *words, "-o", "ndjson"), is_made) for *words, is_made in seen]
        waiting, _ = started(daemon, ends, "wait", "vs", AFTER[-1], "--for", "exists")
        lines = [map(json.loads, said) for _, said, _ in watches]
        told = [made(each, is_made, BEFORE[0]) for each, (*_, is_made) in zip(lines, watches, strict=True)]
        apply_set(daemon, BEFORE[1])
        for found, each, (*_, is_made) in zip(told, lines, watches, strict=True):
            found += made(each, is_made, BEFORE[1])
        until(lambda: has_asked_in_vain(metrics))
        daemon.kill()
        # One that asks again and again may miss a daemon that is back before it asks.
        until(lambda: all((daemon.folder / f"{name}.err").stat().st_size for name in SAYING))
        daemon.start()
        for name in AFTER:
            apply_set(daemon, name)
        for found, each, (*_, is_made) in zip(told, lines, watches, strict=True):
            found += made(each, is_made, AFTER[-1])
        assert waiting.wait(PATIENCE) == 0
        for process, *_ in watches:
            process.send_signal(signal.SIGINT)
            process.wait(PATIENCE)
        lagged = "events before number 1 are not available: the daemon started again"
        assert told == [[*BEFORE, *AFTER], [*BEFORE, *AFTER], [*BEFORE, lagged, *AFTER]]
        assert [process.returncode for process, *_ in watches] == [130, 0, 0]
    for name in SAYING:
        said = (daemon.folder / f"{name}.err").read_text().splitlines()
        assert said[0].endswith("asking again until it is back (^C ends this)"), said
        assert said[1] == "the daemon is back"
        assert len(said) == 2, said


# Logs of a chain, by a real daemon and the real engine: decoded, reshaped by ``preprocess``, each of them once.

MINTED_MANIFEST = """kind: DatasetSnapshot
version: 1
content:
  name: minted
  kind: Root
  metadata:
    - kind: SetPollingSource
      fetch:
        kind: EthereumLogs
        chainId: 1
        nodeUrl: '{url}'
        signature: {signature}
        filter: block_number > 99
      read:
        kind: Parquet
      preprocess:
        kind: Sql
        engine: spark
        query: |
          select timestamp_seconds(cast(event.time as bigint)) as event_time, block_number,
            lower(hex(event.to)) as holder, cast(event.amount as decimal(38, 0)) as amount
          from input
      merge:
        kind: Append
"""


@pytest.mark.engine
def test_logs_are_decoded_reshaped_and_taken_once(make_with_spark: Callable[..., Any], tmp_path: Path) -> None:
    eth_abi = pytest.importorskip("eth_abi")
    alice = make_with_spark("alice")
    alice.start()
    with chain_served() as chain:

        def mint(block: int, amount: int) -> None:
            data = eth_abi.encode(["uint256", "uint256", "uint256"], [amount, 7, 1_633_000_000]).hex()
            chain.log(block, 0, [selector(parse_event(MINTED)), "0x" + "00" * 12 + "11" * 20], f"0x{data}")

        (tmp_path / "m.yaml").write_text(MINTED_MANIFEST.format(url=chain.url, signature=MINTED))
        alice.ask("apply", "-f", str(tmp_path / "m.yaml"))
        mint(100, 10**30)
        mint(160, 5)
        chain.final = 150
        alice.ask("pull", "minted")
        chain.final = 200
        alice.ask("pull", "minted")
        assert alice.ask("pull", "minted")["items"][0]["outcome"] == "up-to-date"
        rows = [row[4:] for row in alice.ask("tail", "minted")["rows"]]
    assert [(row[0], row[1], str(row[2])) for row in rows] == [(100, "11" * 20, str(10**30)), (160, "11" * 20, "5")]
    assert alice.ask("verify", "minted")["ok"]
    assert alice.stop() == 0

"""Plays the main scenario in acts: publish, mirror, re-run, continue together, survive a fault. Liars are in
``lies``."""

from __future__ import annotations

import json
import os
import stat
from functools import partial
from pathlib import Path
from typing import Any, Final

from demo.data import LAST_DAY, airlines_files, cut_flights
from demo.nodes import Broken, Node, until
from demo.relay import Relay
from demo.stage import AT_ONCE, DERIVED, HONEST, NETWORK, Stage, relies
from odfd.cli.kinds import with_state

MANIFESTS: Final = Path(__file__).parent / "manifests"
INVALID: Final = 5
"""How a command ends that was given what is no sound file."""
ROAD_SPEED: Final = 1_500_000
"""Bytes a second on the bad road: slow enough to break it in the middle of a mirror."""


def publish(stage: Stage) -> None:
    """Makes two root datasets and two derived ones on node A, and ingests a year of flights, month by month."""
    story = stage.story
    story.act("Act 1 · Alice publishes (node A)")
    a = stage.node("A", "alice", '[flows]\ncooldown-seconds = 1\n[policy]\nprofile = "laptop"\n')
    a.do("network", "join", NETWORK)
    stage.address = a.do("status")["listen"][0]
    _write_manifests(stage)
    held_back = stage.folder / "held-back"
    stage.rows = cut_flights(held_back)
    months = [name for name in stage.rows if not name.startswith(LAST_DAY)]
    # A poll that finds no file at all has failed: what is polled first is there before anything polls.
    for name, text in airlines_files().items():
        _appear(stage.sources / "airlines" / name, text)
    _appear(stage.sources / "months" / months[0], (held_back / months[0]).read_text())
    applied = a.do("apply", "-f", str(stage.sources))
    made = {item["name"]: item for item in applied["items"]}
    if any(item["action"] != "created" for item in made.values()):
        raise Broken(f"apply: {applied}")
    stage.ids = {name: item["id"] for name, item in made.items() if item["kind"] == "dataset"}
    a.do("publish", "--all")
    story.claim("4 datasets from manifests; both queries are deterministic, and the engine's digest is pinned", "A")
    story.claim("2 flows poll the folders, derived datasets follow: from here on nobody types pull", "A")
    for number, name in enumerate(months, start=1):
        if number > 1:
            _appear(stage.sources / "months" / name, (held_back / name).read_text())
        total = sum(stage.rows[each] for each in months[:number])
        flights, delays = until(f"{name} is in, and derived from", partial(_has_come, a, total, number), 180)
        story.say(f"{name}  {flights:>7,} flights are in, {delays:>5,} rows of delays out")
    added = a.do("log", "nyc.flights", "--kind", "AddData", "--limit", "100")
    if len(added) != len(months):
        raise Broken(f"{len(added)} AddData blocks for {len(months)} months")
    rows = sum(stage.rows[name] for name in months)
    said = "parsed, merged and derived on Spark, each head signed"
    story.claim(f"{rows:,} flights in {len(added)} blocks, {said}", "A")
    changes = a.do("tail", "nyc.airlines", "-n", "3")
    ops = [row[changes["columns"].index(_column(changes, "op"))] for row in changes["rows"]]
    if ops != [2, 3, 1]:
        raise Broken(f"the later table of airlines gave the operations {ops}")
    story.claim("a corrected name became -C and +C, a vanished airline -R: history is kept, not overwritten", "A")


def _has_come(node: Node, rows: int, files: int) -> tuple[int, int] | None:
    """Flights and delays once so many rows are in and each derived dataset has one transaction for each file."""
    if any(with_state(flow).get("failures") for flow in node.do("get", "flows")):
        raise Broken(f"a flow failed: {node.do('get', 'flows')}")
    derived = [len(node.do("log", name, "--kind", "ExecuteTransform", "--limit", "1000")) for name in DERIVED]
    views = node.datasets()
    if views["nyc.flights"]["records"] != rows or min(derived) < files:
        return None
    if max(derived) > files:
        raise Broken(f"{files} files made {derived} transactions")
    return views["nyc.flights"]["records"], views["nyc.flights.delays"]["records"]


def mirror(stage: Stage) -> None:
    """Nodes B and C mirror everything; B over a bad road, killed and cut off in the middle."""
    story = stage.story
    story.act("Act 2 · Bob and Carol mirror (nodes B and C, libp2p)")
    relay = Relay(int(stage.address.split("/")[4]), ROAD_SPEED)
    stage.facts["relay"] = relay
    b = stage.node("B", "bob", f'[policy]\nprofile = "validator"\n{AT_ONCE}')
    key = b.do("status")["nodeId"]
    c = stage.node(  # which counts words alone: a mirror's spot checks are drawn by lot, and a story is not
        "C",
        "carol",
        '[policy]\nprofile = "mirror"\nserve = "data & attested:1"\n[policy.validators]\nf = 0\nspot-check = 0\n'
        f'groups = [{{name = "bob", keys = ["{key}"]}}]\n',
    )
    slow = stage.address.replace(f"/tcp/{stage.address.split('/')[4]}/", f"/tcp/{relay.port}/")
    b.do("network", "join", NETWORK, "--bootstrap", slow)
    c.do("network", "join", NETWORK, "--bootstrap", stage.address)
    _break_b(stage, b, relay)
    for node in (b, c):
        for name in HONEST:
            node.do("mirror", "add", stage.ids[name], "--as", name)
    for node in (b, c):
        _same_heads(stage, node)
    size = sum(view["bytes"]["want"] for view in c.mirrors().values())
    said = "hash, link, rules, signature, both data hashes, offsets and schema checked as they came"
    story.claim(f"{size / 1e6:.1f} MB in {len(HONEST)} mirrors: {said}", "B and C")


def _break_b(stage: Stage, b: Node, relay: Relay) -> None:
    """Kill B with signal 9 while it fetches, start it again, then cut its connection."""
    story = stage.story
    b.begin("mirror", "add", stage.ids["nyc.flights"], "--as", "nyc.flights")
    before = until("B has a part of the mirror", partial(_part, b), 180)
    b.kill()
    story.say(f"kill -9 of B with {before[0]} of {before[1]} slices fetched")
    b.start()
    story.claim("B starts again, its database is whole, and it takes up the mirror by itself", "B")
    until("B fetches again", lambda: _part(b) or _done(b), 180)
    broken = relay.cut()
    story.say(f"{broken} connections between A and B cut")
    until("B has all of it", partial(_done, b), 240)
    story.claim("a cut connection cost nothing but time: what had come was not fetched again", "B")


def _part(node: Node) -> tuple[int, int] | None:
    for view in node.mirrors().values():
        slices = view.get("slices")  # none before the first pass over a mirror knows its chain
        if slices is not None and 0 < slices["have"] < slices["want"]:
            return slices["have"], slices["want"]
    return None


def _done(node: Node) -> bool:
    found = node.mirrors()
    return bool(found) and all(view["state"] == "current" for view in found.values())


def reproduce(stage: Stage) -> None:
    """Runs every transform again on B from genesis and signs; C counts its verdict."""
    story = stage.story
    story.act("Act 3 · Bob re-runs, Carol counts")
    b, c = stage.nodes["B"], stage.nodes["C"]
    for name in DERIVED:
        steps = len(b.do("log", name, "--kind", "ExecuteTransform", "--limit", "1000"))
        until(f"B reproduced {name}", partial(relies, stage, b, name, "reproduced"), 300)
        story.claim(
            f"{name}: {steps} transforms run again from genesis on B's own Spark, every logical hash equal", "B"
        )
    for name in DERIVED:
        until(f"C counts B's attestation of {name}", partial(relies, stage, c, name, "attested 1/1"), 180)
        trust = c.do("trust", "show", name)
        if trust["facts"]["attested"] != {"have": 1, "needed": 1}:
            raise Broken(f"C: {trust['facts']}")
    story.claim("attested 1/1: now, and not before, Carol passes the derived data on", "C")


def go_on(stage: Stage) -> None:
    """Adds one more file while all nodes are online."""
    story = stage.story
    story.act("Act 4 · One more day, while everybody is online")
    a, b, c = (stage.nodes[letter] for letter in "ABC")
    name = f"{LAST_DAY}.csv"
    _appear(stage.sources / "months" / name, (stage.folder / "held-back" / name).read_text())
    rows = sum(stage.rows.values())
    until(f"A has {name}, and derived from it", partial(_has_come, a, rows, len(stage.rows)), 180)
    head = stage.dataset(a, "nyc.flights")["head"]
    for node in (b, c):
        until(f"{node.letter} has the new day", partial(_has_heads_of, node, a), 180)
    said = f"B and C have head {head[6:10]}… and what derives from it, verified, without being asked"
    story.claim(f"{stage.rows[name]} more flights: {said}", "B and C")
    for name in DERIVED:
        until(f"C relies on {name}", partial(relies, stage, c, name, "attested 1/1"), 240)
    total = stage.dataset(a, "nyc.flights")["records"]
    if total != sum(stage.rows.values()):
        raise Broken(f"{total} records of {sum(stage.rows.values())}")
    story.claim(f"all {total:,} flights of the year are in, re-run and attested again", "B, counted by C")


def accident(stage: Stage) -> None:
    """Flips one bit of one file on B's disk."""
    story = stage.story
    story.act("Act 8 · A bit flips on Bob's disk")
    b = stage.nodes["B"]
    victim = max((path for path in (b.state / "objects").glob("??/f1620*")), key=lambda path: path.stat().st_size)
    _flip(victim)
    report = b.ask("verify", "nyc.flights", "--level", "data")
    rules = {failure["rule"] for failure in report.json["failures"]}
    if report.code != 1 or "slice-physical-hash" not in rules:
        raise Broken(f"verify ended with {report.code} and found {rules}")
    place = report.json["failures"][0]["block"]["sequenceNumber"]
    story.claim(f"verify says no: block #{place}, slice-physical-hash; the damaged file is no longer served", "B")
    again = until("B is whole again", lambda: _whole(b), 180)
    story.claim(
        f"noticed, and fetched anew from a peer unasked; {again['checked']['slices']} slices are whole again", "B"
    )


QUESTION: Final = 'select carrier, count(*) as flights from "nyc.flights" group by carrier'


def prove(stage: Stage) -> None:
    """Signs an answer on A; B runs the query on its own copy, and a forged answer is rejected."""
    story = stage.story
    story.act("Act 9 · Alice answers a question, Bob asks it again")
    a, b = stage.nodes["A"], stage.nodes["B"]
    proof = stage.folder / "answer.json"
    answer = a.do("sql", "-o", "json", "--prove", str(proof), QUESTION)
    carrier, flights = max(answer["rows"], key=lambda row: row[1])
    said = f"{len(answer['rows'])} carriers, {carrier} with most flights, {flights:,}: signed, with the blocks read"
    story.claim(said, "A")
    again = b.do("trust", "recheck", str(proof))
    if again["result"] != "confirmed" or again["rows"] != len(answer["rows"]):
        raise Broken(f"B rechecked the answer: {again}")
    story.claim("the same rows of its own copy: the answer proves itself, whoever hands it on", "B")
    document = json.loads(proof.read_text())
    document["statement"]["signatures"][0]["sig"] = "A" * 86 + "=="
    proof.write_text(json.dumps(document))
    if b.ask("trust", "recheck", str(proof)).code != INVALID:
        raise Broken("B took a statement that nobody signed")
    story.claim("the same under another signature is refused", "B")


def _whole(node: Node) -> Any:
    report = node.ask("verify", "nyc.flights", "--level", "data")
    return report.json if report.code == 0 else None


def _flip(path: Path) -> None:
    path.chmod(stat.S_IRUSR | stat.S_IWUSR)
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 0x10]))


def _write_manifests(stage: Stage) -> None:
    for folder in ("months", "airlines"):
        (stage.sources / folder).mkdir(parents=True, exist_ok=True)
    for manifest in MANIFESTS.glob("*.yaml"):
        (stage.sources / manifest.name).write_text(manifest.read_text())


def _appear(path: Path, text: str) -> None:
    """Whole at once, as files should appear under a source that is polled."""
    draft = path.with_suffix(".part")
    draft.write_text(text)
    draft.rename(path)


def _column(records: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(column for column in records["columns"] if column["name"] == name)
    return found


def _same_heads(stage: Stage, node: Node) -> None:
    until(f"{node.letter} has Alice's heads", partial(_has_heads_of, node, stage.nodes["A"]), 180)


def _has_heads_of(node: Node, owner: Node) -> bool:
    theirs, ours = owner.datasets(), node.datasets()
    return all(name in ours and ours[name]["head"] == theirs[name]["head"] for name in HONEST)

"""Plays the second act: a publisher lies, one validator of three confirms it, the others detect it, and he repairs
it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from demo.nodes import Broken, Node, until
from demo.stage import AT_ONCE, BAD, DERIVED, HONEST, NETWORK, Stage, all_good, relies, settings_of

GROUPS: Final = {"alice": "A", "bob": "B", "eve": "E"}
"""Three validators, each in a group of its own."""
REFUTED: Final = "refuted"
ACCUSED: Final = "accused"
_TWO_OF_THREE: Final = 'profile = "mirror"\nserve = "data & attested:2"\n'


def gather_validators(stage: Stage) -> None:
    """Sets up validators: Alice re-runs others' datasets, Eve re-runs nothing, Carol requires several verdicts."""
    story = stage.story
    story.act("Act 5 · Three validators, one of them bought (node E)")
    a, c = stage.nodes["A"], stage.nodes["C"]
    a.reload(settings_of("alice", f'{AT_ONCE}attest = true\n[policy.rewrite]\nfollow = "follow"\n'))
    e = stage.node(
        "E", "eve", f'[policy]\nprofile = "validator"\n{AT_ONCE}', program=(sys.executable, "-m", "demo.colluder")
    )
    e.do("network", "join", NETWORK, "--bootstrap", stage.address)
    for name in DERIVED:
        e.do("mirror", "add", stage.ids[name], "--as", name)
    keys = [(group, stage.nodes[letter].do("status")["nodeId"]) for group, letter in GROUPS.items()]
    stage.facts["listing"] = _listing(keys)
    c.reload(settings_of("carol", f"[policy]\n{_TWO_OF_THREE}{stage.facts['listing']}"))
    for name in DERIVED:
        until(f"C counts two validators of {name}", partial(relies, stage, c, name, "attested 2/3"), 180)
    story.claim(
        "Carol lists three validators, of whom one may lie, and asks for two: attested 2/3, Alice's own by others", "C"
    )


def _listing(keys: Sequence[tuple[str, str]]) -> str:
    groups = ", ".join(f'{{name = "{group}", keys = ["{key}"]}}' for group, key in keys)
    # Here words are counted; the evidence is run again by hand, from the file alone.
    return f"[policy.validators]\nf = 1\nrecheck = false\nspot-check = 0\ngroups = [{groups}]\n"


def lie(stage: Stage) -> None:
    """Signs a derivation on node D with one changed number; two validators detect it, one confirms it, and all are
    informed."""
    story = stage.story
    story.act("Act 6 · Dave lies (node D), and Eve swears that he does not")
    d = stage.node("D", "dave", f"[policy]\n{stage.facts['listing']}", program=(sys.executable, "-m", "demo.liar"))
    d.do("network", "join", NETWORK, "--bootstrap", stage.address)
    d.do("mirror", "add", stage.ids["nyc.flights"], "--as", "nyc.flights")
    manifest = (stage.sources / "delays.yaml").read_text().replace("name: nyc.flights.delays", f"name: {BAD}")
    (stage.folder / "bad.yaml").write_text(manifest)
    stage.ids[BAD] = d.do("apply", "-f", str(stage.folder / "bad.yaml"))["items"][0]["id"]
    d.do("publish", BAD)
    all_good({item["ref"]: item for item in d.do("pull", BAD)["items"]})
    report = d.ask("verify", BAD, "--level", "data")
    if report.code != 0 or not report.json["ok"]:
        raise Broken(f"the lie should be well formed: {report.out}")
    story.say(
        "D derives delays from Alice's flights, takes 1,000 minutes from one carrier on one day, hashes and signs it"
    )
    story.claim("valid keys, valid hashes, valid chain: verification of chain and data finds nothing", "D")
    for letter in "ABCE":
        stage.nodes[letter].do("mirror", "add", stage.ids[BAD], "--as", BAD)
    found = _found_by_two(stage)
    _known_to_all(stage, found["block"])
    _re_check(stage, stage.nodes["B"], found["bundle"])


def _found_by_two(stage: Stage) -> dict[str, Any]:
    """What Bob found, and Alice too."""
    finds = {
        letter: until(f"{letter} refutes the lie", partial(_evidence, stage.nodes[letter]), 400) for letter in "BA"
    }
    found = finds["B"]
    cell = found["cells"][0]
    if (cell["column"], cell["context"]["carrier"]) != ("delay", "UA"):
        raise Broken(f"B names {cell}")
    if float(cell["computed"]) - float(cell["published"]) != 1000:
        raise Broken(f"B says {cell['published']} was published and {cell['computed']} computed")
    if finds["A"]["block"] != found["block"] or finds["A"]["cells"][0]["computed"] != cell["computed"]:
        raise Broken(f"A and B differ: {finds['A']} and {found}")
    stage.facts["lie"] = found
    where = f"block #{found['block']}, row {cell['row']}, column {cell['column']}"
    whose = f"carrier UA, {cell['context']['event_time'][:10]}"
    said = f"{cell['published']} published, {cell['computed']} computed, three fresh runs alike on each of two nodes"
    stage.story.claim(f"{where} ({whose}): {said}", "A and B")
    return found


def _known_to_all(stage: Stage, block: int) -> None:
    """Refuted where two are counted, on the liar's own node too; who denies it stands there by name.

    Alice and Bob list nobody: what they found is their own word, and one machine accuses.
    """
    story, c = stage.story, stage.nodes["C"]
    for letter, state in (("A", ACCUSED), ("B", ACCUSED), ("C", REFUTED), ("D", REFUTED)):
        until(f"{letter} knows of the lie", partial(_is, stage, stage.nodes[letter], state), 240)
    views = c.mirrors()
    if views[BAD]["serving"] or not all(views[name]["serving"] for name in HONEST):
        raise Broken(f"C serves {[name for name, view in views.items() if view['serving']]}")
    trust = c.do("trust", "show", BAD)
    if trust["why"]["rule"] != REFUTED or trust["reach"]["serve"] > block:
        raise Broken(f"C: {trust['reach']} {trust['why']}")
    said = f"Carol keeps it, relies on nothing after #{trust['reach']['use'] - 1} and refuses to serve it"
    story.claim(f"refuted at #{trust['why']['block']} by two validators on one value: {said}", "C")
    on_d = stage.nodes["D"].do("trust", "show", BAD)["why"]["rule"]
    if on_d != REFUTED:
        raise Broken(f"D: {on_d}")
    story.claim(
        "refuted on Carol's node and on Dave's own, which count the same three; Alice and Bob, who list nobody, each "
        "stop on their own finding, which accuses and does not refute",
        "A, B, C and D",
    )
    groups = until("C has heard Eve", lambda: [each["group"] for each in c.do("trust", "show", BAD)["dissent"]], 180)
    if groups != ["eve"]:
        raise Broken(f"C says that {groups} dissent")
    story.claim("Eve signed that it is right: she is named as the one who dissents, and one of three is no veto", "C")


def _re_check(stage: Stage, node: Node, bundle: str) -> None:
    """Take the evidence out of the network, and judge it with nothing but the file."""
    file = stage.folder / "lie.odfe"
    node.do("trust", "evidence", bundle, "-O", str(file))
    answer = node.ask("trust", "recheck", str(file))
    if answer.code != 0 or answer.json["result"] != "confirmed":
        raise Broken(f"recheck ended with {answer.code}: {answer.out} {answer.err}")
    size = f"{file.stat().st_size / 1e6:.1f} MB"
    stage.story.claim(
        f"the evidence is a file of {size}: run again from it alone, the lie is confirmed", "anyone, offline"
    )


def recover(stage: Stage) -> None:
    """Repairs Dave's node: a new epoch withdraws the false data openly, and the correct data is attested."""
    story = stage.story
    story.act("Act 7 · Dave's node is cleaned up, and he makes it good")
    b, c, d = (stage.nodes[letter] for letter in "BCD")
    block = stage.facts["lie"]["block"]
    d.stop()
    d.program, d.environment = Node.program, {}
    d.start()
    done = d.do("reset", BAD, f"#{block - 1}", "--reason", "recovery", "--yes")
    all_good({item["ref"]: item for item in d.do("pull", BAD)["items"]})
    story.say(f"D starts as it should be, gives up what came after #{done['kept'] - 1} and derives it again")
    head = stage.dataset(d, BAD)["head"]
    until("B is asked", partial(_is_offered, b, head), 180)
    if not _is(stage, b, ACCUSED):
        raise Broken("B followed unasked")
    b.do("trust", "resolve", BAD, "--follow", head)
    for node in (b, c):
        until(f"{node.letter} has the new history", partial(_has_head, stage, node, head), 180)
    (opened,) = c.do("trust", "authority", "show", BAD)["epochs"]
    if (opened["reason"], opened["kept"]) != ("recovery", block):
        raise Broken(f"C knows of the epoch {opened}")
    story.claim(
        f"epoch {opened['number']}, reason recovery: what came after #{block - 1} is given up in the open, signed "
        "by the dataset's root; Carol follows by policy, Bob on a person's word",
        "B and C",
    )
    stage.facts["recovery"] = (
        f"epoch {opened['number']} gives up what came after #{block - 1}, signed by its root; "
        "A and B re-ran what replaces it, and C relies on it again"
    )
    until("A and B reproduced the new history", partial(_attested_by_two, c), 400)
    trust = c.do("trust", "show", BAD)
    until("C serves it", lambda: c.mirrors()[BAD]["serving"], 180)
    story.claim(
        f"run again by Alice and Bob: all {trust['reach']['use']} blocks may be relied on and passed on again", "C"
    )


def _attested_by_two(node: Node) -> bool:
    """Whether both honest validators, and not only the bought one, stand behind all of it."""
    trust = node.do("trust", "show", BAD)
    groups = {each["group"] for each in trust["attestations"]}
    return bool({"alice", "bob"} <= groups and not trust["dissent"] and trust["reach"]["serve"] == trust["blocks"])


def _is(stage: Stage, node: Node, state: str) -> bool:
    """Whether a node says so of the lie."""
    return bool(stage.dataset(node, BAD)["state"] == state)


def _has_head(stage: Stage, node: Node, head: str) -> bool:
    return bool(stage.dataset(node, BAD)["head"] == head)


def _is_offered(node: Node, head: str) -> bool:
    return any(choice["hash"] == head for choice in node.do("trust", "show", BAD)["choices"])


def _evidence(node: Node) -> dict[str, Any] | None:
    with contextlib.suppress(Broken):
        for item in node.do("trust", "show", BAD)["evidence"]:
            if item["kind"] == "mismatch" and item["cells"]:
                return dict(item)
    return None

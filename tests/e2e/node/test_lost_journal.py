"""A machine restored from a backup without its signing journals: real daemons, real sockets, real files."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from odfd.cli.kinds import with_state
from worlds.manifests import ROOT

pytestmark = pytest.mark.e2e


def write(folder: Path, number: int) -> None:
    row = f"2024-01-{number + 1:02}T00:00:00Z,c{number},{number}"
    (folder / f"{number:02}.csv").write_text(f"event_time,city,population\n{row}\n")


def journals(daemon: Any) -> list[Path]:
    return list((daemon.state / "keys").glob("*.journal"))


def restore(daemon: Any) -> None:
    """The state of the backup; journals are in none."""
    shutil.rmtree(daemon.state)
    shutil.copytree(daemon.folder / "backup", daemon.state)
    for journal in journals(daemon):
        journal.unlink()


def test_a_restored_machine_asks_and_then_goes_on(make_daemon: Callable[..., Any]) -> None:
    alice, bob = (make_daemon(name, listens=True, ODFD_NODE_NAME=name) for name in ("a", "b"))
    for daemon in (alice, bob):
        daemon.small = True
    alice.start()
    (alice.folder / "m.yaml").write_text(ROOT)
    write(alice.folder, 0)
    alice.ask("apply", "-f", str(alice.folder / "m.yaml"))
    alice.ask("pull", "cities")
    assert alice.stop() == 0
    shutil.copytree(alice.state, alice.folder / "backup")

    alice.start()
    for number in (1, 2):
        write(alice.folder, number)
        alice.ask("pull", "cities")
    (signed,) = alice.datasets()
    alice.ask("network", "join", "n")
    bob.start()
    bob.ask("network", "join", "n", "--bootstrap", alice.ask("status")["listen"][0])
    assert with_state(bob.ask("mirror", "add", signed["id"], "--as", "theirs"))["blocks"]["have"] == signed["blocks"]
    assert alice.stop() == 0

    restore(alice)
    alice.start()
    doctor = alice.ctl("doctor")
    assert (doctor.code, "signing journals are gone" in doctor.out) == (1, True)
    assert alice.ask("status")["lostJournals"] == 2
    assert "stopped for 2 keys" in alice.ctl("status").out
    refused = alice.ctl("pull", "cities")
    assert (refused.code, "trust.journal" in refused.err + refused.out) == (4, True), refused
    refused = alice.ctl("trust", "sign")
    assert (refused.code, "--alone" in refused.err) == (4, True), refused

    alice.ask("network", "join", "n")
    alice.ask("peer", "connect", bob.ask("status")["listen"][0])
    refused = alice.ctl("trust", "sign")
    assert (refused.code, "did not list" in refused.err) == (4, True), refused
    alice.ask("trust", "validator", "add", bob.ask("status")["nodeId"], "--group", "bob")
    done = alice.ask("trust", "sign")
    assert (done["peers"], len(done["begun"])) == (1, 2)
    refused = alice.ctl("pull", "cities")
    assert (refused.code, "trust.behind" in refused.err + refused.out) == (4, True), refused
    (item,) = alice.ask("pull", "cities", "--repair")["items"]
    assert item["blocks"] > 0
    assert [one["head"] for one in alice.datasets()] == [signed["head"]]
    write(alice.folder, 3)
    (item,) = alice.ask("pull", "cities")["items"]
    assert item["outcome"] == "updated"
    bob.ask("pull", "theirs")
    (mine,), (theirs,) = alice.datasets(), bob.datasets()
    assert (theirs["state"], theirs["head"]) == ("fresh", mine["head"])
    assert mine["blocks"] > signed["blocks"]
    assert alice.stop() == bob.stop() == 0


def test_a_person_speaks_for_a_machine_that_has_nobody_to_ask(make_daemon: Callable[..., Any]) -> None:
    alice = make_daemon("a", ODFD_NODE_NAME="alice", small=True)
    alice.start()
    (alice.folder / "m.yaml").write_text(ROOT)
    alice.ask("apply", "-f", str(alice.folder / "m.yaml"))
    alice.kill()
    for journal in journals(alice):
        journal.unlink()
    alice.start()
    write(alice.folder, 0)
    assert alice.ctl("pull", "cities").code == 4
    said = alice.ctl("trust", "sign", "--alone")
    assert (said.code, "nobody that is listed could be asked" in said.out, "cities" in said.out) == (0, True, True), (
        said
    )
    (item,) = alice.ask("pull", "cities")["items"]
    assert item["outcome"] == "updated"
    alice.kill()
    alice.start()
    assert alice.ask("status")["lostJournals"] == 0
    assert alice.ask("trust", "sign") == {"begun": [], "peers": 0}
    assert alice.stop() == 0

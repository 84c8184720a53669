"""Real daemons on loopback tell each other names: beside ids, changed by SIGHUP, taken back, and alike ones marked."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from typing import Any

import pytest

from odfd.cli.kinds import with_state
from worlds.eventually import until

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def settings(name: str, told: bool = True) -> str:
    return f'[node]\nname = "{name}"\ncontact = "mail@example.org"\n[p2p]\ncard = {str(told).lower()}\n'


def named(daemon: Any, text: str) -> Any:
    file = daemon.folder / "odfd.toml"
    file.write_text(text)
    return daemon.start("--config", str(file))


def names(daemon: Any) -> dict[str, str | None]:
    return {each["spec"]["peerId"]: with_state(each).get("name") for each in daemon.ask("peer", "list")}


def test_two_daemons_show_each_other_by_name(make_daemon: Callable[..., Any]) -> None:
    def made(name: str) -> Any:
        return make_daemon(name, listens=True, small=True)

    alice = named(made("alice"), settings("Graz"))
    bob = made("bob").start()
    alice.ask("network", "join", "village")
    bob.ask("network", "join", "village", "--bootstrap", alice.ask("status")["listen"][0])
    me = alice.ask("status")["peerId"]
    until(lambda: names(bob).get(me) == "Graz")
    assert [with_state(each).get("name") for each in alice.ask("peer", "list")] == [None], "bob wrote nothing"
    assert with_state(bob.ask("peer", "show", me))["contact"] == "mail@example.org"
    table = bob.said("peer", "list").out.splitlines()
    assert table[0].split()[:3] == ["PEER", "NAME", "STATE"]
    assert f"{me}  Graz" in table[1]
    shown = bob.said("network", "show", "village")
    assert re.search(rf"1 peer in village(, .*)?: {me[:12]}…{me[-8:]} Graz", shown.err)
    assert bob.said("peer", "show", "Graz").code != 0, "a name is no id"

    mallory = named(made("mallory"), settings("Gr\u0430z"))
    mallory.ask("network", "join", "village", "--bootstrap", alice.ask("status")["listen"][0])
    other = mallory.ask("status")["peerId"]
    until(lambda: names(bob).get(other) == "Gr\u0430z")
    assert "tell them apart by their ids" in bob.said("peer", "list").err
    mallory.stop()

    (alice.folder / "odfd.toml").write_text(settings("Leoben"))
    assert alice.process is not None
    alice.process.send_signal(signal.SIGHUP)
    until(lambda: names(bob).get(me) == "Leoben")
    assert names(bob).get(other) == "Gr\u0430z", "kept while it is away"
    (alice.folder / "odfd.toml").write_text(settings("Leoben", told=False))
    alice.process.send_signal(signal.SIGHUP)
    until(lambda: names(bob).get(me) is None)

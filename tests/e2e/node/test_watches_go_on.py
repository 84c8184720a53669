"""Watches of ``odfctl`` go on over ``kill -9`` of the daemon: nothing is left out, nothing comes twice."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import IO, Any, Final

import pytest

from worlds.daemons import Daemon
from worlds.eventually import PATIENCE, until
from worlds.forked import Forked
from worlds.ports import free_port

pytestmark = pytest.mark.e2e
BEFORE: Final = ("a", "b")
SAYING: Final = ("get", "events", "watch", "wait")
AFTER: Final = ("c", "d")


def apply(daemon: Any, name: str) -> None:
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
    apply(daemon, BEFORE[0])
    seen = (("get", "vs", "-w", in_listing), ("events", "-w", in_history), ("watch", "--since", "0", in_events))
    with ExitStack() as ends:
        watches = [(*started(daemon, ends, *words, "-o", "ndjson"), is_made) for *words, is_made in seen]
        waiting, _ = started(daemon, ends, "wait", "vs", AFTER[-1], "--for", "exists")
        lines = [map(json.loads, said) for _, said, _ in watches]
        told = [made(each, is_made, BEFORE[0]) for each, (*_, is_made) in zip(lines, watches, strict=True)]
        apply(daemon, BEFORE[1])
        for found, each, (*_, is_made) in zip(told, lines, watches, strict=True):
            found += made(each, is_made, BEFORE[1])
        until(lambda: has_asked_in_vain(metrics))
        daemon.kill()
        # One that asks again and again may miss a daemon that is back before it asks.
        until(lambda: all((daemon.folder / f"{name}.err").stat().st_size for name in SAYING))
        daemon.start()
        for name in AFTER:
            apply(daemon, name)
        for found, each, (*_, is_made) in zip(told, lines, watches, strict=True):
            found += made(each, is_made, AFTER[-1])
        assert waiting.wait(PATIENCE) == 0
        for process, *_ in watches:
            process.send_signal(signal.SIGINT)
            process.wait(PATIENCE)
        lagged = "events before number 1 cannot be told: the daemon started anew"
        assert told == [[*BEFORE, *AFTER], [*BEFORE, *AFTER], [*BEFORE, lagged, *AFTER]]
        assert [process.returncode for process, *_ in watches] == [130, 0, 0]
    for name in SAYING:
        said = (daemon.folder / f"{name}.err").read_text().splitlines()
        assert said[0].endswith("asking again until it is back (^C ends this)"), said
        assert said[1] == "the daemon is back"
        assert len(said) == 2, said

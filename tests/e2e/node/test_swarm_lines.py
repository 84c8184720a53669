"""Seven daemons mirror one dataset at once over shaped lines: its publisher, on a slow one, gives it about once."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from odfd.cli.kinds import with_state
from worlds.eventually import until
from worlds.manifests import ROOT
from worlds.nat_world import Internet, NoNat, Place, open_internet

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
FILES = 20
ROWS = 14_000
"""Of one file: with 36 random digits in each about half a megabyte of slice."""
LARGE = 130_000
"""Of the only file: more than the 8 MiB from which an object is divided."""
PUBLISHER = "5mbit"
MIRROR = "40mbit"
MIRRORS = 7


@pytest.fixture
def internet() -> Iterator[Internet]:
    try:
        with open_internet() as net:
            yield net
    except NoNat as reason:
        pytest.skip(f"no networks can be made here: {reason}")


def shaped(place: Place, rate: str) -> None:
    """What leaves the place leaves at this rate."""
    try:
        place.run("tc", "qdisc", "add", "dev", "wan", "root", "tbf", "rate", rate, "burst", "64k", "latency", "400ms")
    except (subprocess.CalledProcessError, FileNotFoundError) as reason:
        pytest.skip(f"no line can be shaped here (tc with tbf): {reason}")


def sent(place: Place) -> int:
    """Bytes that left the place."""
    path = "/sys/class/net/wan/statistics/tx_bytes"
    return int(subprocess.run([*place.entering, "cat", path], check=True, capture_output=True).stdout)


def started(make_daemon: Callable[..., Any], name: str, place: Place, *bootstrap: str) -> Any:
    daemon = make_daemon(name, ODFD_NODE_NAME=name, ODFD_P2P_LISTEN="/ip4/0.0.0.0/tcp/4150")
    daemon.small, daemon.inside = True, place.namespaces
    daemon.start()
    daemon.ask("network", "join", "town", *bootstrap)
    return daemon


def published(daemon: Any, files: int, rows_each: int) -> str:
    (daemon.folder / "m.yaml").write_text(ROOT)
    lot = random.Random(1)
    for number in range(files):
        rows = (f"2024-01-01T00:00:00Z,{lot.getrandbits(288):072x},{lot.getrandbits(30)}" for _ in range(rows_each))
        (daemon.folder / f"{number:02}.csv").write_text("\n".join(["event_time,city,population", *rows, ""]))
        if not number:
            daemon.ask("apply", "-f", str(daemon.folder / "m.yaml"))
        daemon.ask("pull", "cities")
    return str(daemon.dataset("cities")["id"])


@pytest.mark.parametrize(("files", "rows"), [(FILES, ROWS), (1, LARGE)], ids=["slices", "one-large-slice"])
def test_the_publisher_on_a_slow_line_gives_two_copies_at_most(
    internet: Internet, make_daemon: Callable[..., Any], capsys: pytest.CaptureFixture[str], files: int, rows: int
) -> None:
    """Of many slices, and of one, of which mirrors exchange pieces."""
    places = [internet.public() for _ in range(MIRRORS + 1)]
    alice = started(make_daemon, "alice", places[0])
    dataset = published(alice, files, rows)
    (told,) = alice.ask("status")["listen"]
    mirrors = [
        started(make_daemon, f"mirror{number}", place, "--bootstrap", told) for number, place in enumerate(places[1:])
    ]
    until(lambda: all(each.ask("status")["peers"] >= MIRRORS - 2 for each in mirrors))
    for place in places:
        shaped(place, PUBLISHER if place is places[0] else MIRROR)
    before, begun = sent(places[0]), time.monotonic()
    with ThreadPoolExecutor(MIRRORS) as pool:
        said = list(pool.map(lambda each: each.ctl("mirror", "add", dataset, "--as", "cities"), mirrors))
    took, upload = time.monotonic() - begun, sent(places[0]) - before
    assert not [each.err for each in said if each.code], said
    head = alice.dataset("cities")["head"]
    assert all(each.dataset("cities")["head"] == head for each in mirrors)
    (view,) = mirrors[0].ask("mirror", "list")
    size = with_state(view)["bytes"]["have"]
    rate = 5_000_000 / 8
    with capsys.disabled():
        print(
            f"\n{size / 1e6:.1f} MB to {MIRRORS} mirrors: {took:.0f} s, a server alone {MIRRORS * size / rate:.0f} s, "
            f"publisher sent {upload / size:.2f} copies"
        )
    shown = [with_state(each.ask("network", "show", "town"))["swarm"] for each in mirrors]
    assert sum(each["bytesFromMirrors"] for each in shown) > sum(each["bytesFromPublishers"] for each in shown)
    assert upload < 2 * size, f"{upload / size:.2f} copies in {took:.0f} s"

"""Three processes ingest one source into three shards at once, with wrong clocks, and are killed (``kill -9``).

The source is a folder of files, or a topic of a real broker, whose bytes each reads there.

The others go on, and so does the next process with the same copy. In the end every chain has the bytes that one
instance alone writes from the bindings that came out, each file was taken once, and no row is lost or doubled.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from chain.ids import DatasetId
from chain.instant import Instant
from odfd.ingest.capture_bindings import FOUNDING
from worlds.eventually import PATIENCE
from worlds.instances import House, rows_in
from worlds.kafka import kafka_served
from worlds.topics import message

pytestmark = pytest.mark.e2e
ROUNDS: Final = 2 * int(os.environ.get("ODF_SOAK", "1"))
INSTANCES: Final = 3
PUSHES: Final = 4
LAST_WRITE: Final = 12
"""A binding has four or five writes, a transaction of three shards some ten."""
PROGRAM: Final = Path(__file__).with_name("reclock_instance.py")


def begun(house: House, chain: str, number: int, **more: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(PROGRAM), str(house.folder), chain, f"process{number}"]
    environ = {**os.environ, **more}
    return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ingested(house: House, chain: DatasetId, add: Callable[[str], None], **more: str) -> None:
    """Lets instances be killed amid rounds of ``add``, and then others end the work."""
    rng = random.Random(23)
    kills = 0
    for _ in range(ROUNDS):
        for _ in range(4):
            for _ in range(8):
                add(f"City {rng.randint(0, 99)}")
        running = [
            begun(
                house, str(chain), number, CLOCK=str(rng.randint(-3600, 3600)), KILL_AT=str(rng.randint(3, LAST_WRITE)),
                **({"KILL_AFTER": "1"} if rng.random() < 0.5 else {}), **more,
            )
            for number in range(INSTANCES)
        ]  # fmt: skip
        for process in running:
            _, said = process.communicate(timeout=PATIENCE)
            assert process.returncode in {0, -signal.SIGKILL}, said
            kills += process.returncode != 0
    assert kills >= ROUNDS, "others had nothing left to do"
    last = [begun(house, str(chain), number, **more) for number in range(INSTANCES)]
    for process in last:
        _, said = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, said


def test_instances_that_are_killed_write_the_bytes_of_one(tmp_path: Path) -> None:
    house = House(tmp_path)
    chain = house.begin(3, now=Instant(time.time_ns()))
    waiting: list[str] = []

    def add(city: str) -> None:
        waiting.append(city)
        if len(waiting) == 8:
            house.add(*waiting)
            waiting.clear()

    ingested(house, chain, add)
    found = house.chains(chain)
    assert found == house.as_one_alone(chain, Instant(time.time_ns()))
    assert len(found[chain][1]) - FOUNDING == house.files
    rows = {each: rows_in(raws) for each, (_, raws) in found.items()}
    assert rows.pop(chain) == house.files
    assert sum(rows.values()) == 8 * house.files
    assert all(rows.values())


@pytest.mark.slow
def test_instances_over_a_topic_that_are_killed_write_the_bytes_of_one(tmp_path: Path) -> None:
    """No byte of a message is copied, and each row is in the shard of its city, once."""
    with kafka_served() as broker:
        broker.make("cities", 3)
        house, sent = House(tmp_path), itertools.count()
        house.url = f"kafka://{broker.address}/cities"
        chain = house.begin(3, now=Instant(time.time_ns()))

        def add(city: str) -> None:
            number = next(sent)
            broker.send("cities", message(city, number), partition=number % 3)

        ingested(house, chain, add, TOPIC=house.url)
        found = house.chains(chain)
        assert found == house.as_one_alone(chain, Instant(time.time_ns()))
    kept = [each.read_bytes() for each in (house.folder / "house" / chain.multibase / "data").iterdir()]
    assert not any(each.startswith(b"{") for each in kept)
    rows = {each: rows_in(raws) for each, (_, raws) in found.items()}
    del rows[chain]
    assert sum(rows.values()) == next(sent)
    assert all(rows.values())


def test_pushes_to_instances_that_are_killed_are_taken_once(tmp_path: Path) -> None:
    """Each of three processes is told all pushes, as by clients that got no answer: a push has one receipt."""
    rng = random.Random(23)
    house = House(tmp_path)
    house.takes_pushes = True
    chain = house.begin(3, now=Instant(time.time_ns()))
    folder = tmp_path / "pushes"
    folder.mkdir()
    for number in range(PUSHES):
        rows = "".join(f"2024-01-01T00:00:00Z,City {number} {each},{each}\n" for each in range(8))
        (folder / f"push{number}.csv").write_text(f"event_time,city,population\n{rows}")
    told: dict[str, set[str]] = {}
    killed = 0
    for is_last in (False, True):
        ways = [{} if is_last else {"KILL_AT": str(rng.randint(3, 40))} for _ in range(INSTANCES)]
        wrong = [str(rng.randint(-3600, 3600)) for _ in ways]
        running = [
            begun(house, str(chain), number, PUSHES="1", CLOCK=wrong[number], **way) for number, way in enumerate(ways)
        ]
        for process in running:
            answers, said = process.communicate(timeout=PATIENCE)
            assert process.returncode in ({0} if is_last else {0, -signal.SIGKILL}), said
            killed += process.returncode != 0
            for line in answers.splitlines():
                told.setdefault(json.loads(line)[0], set()).add(line)
    assert killed, "each came to its end"
    assert sorted(told) == [f"push{number}" for number in range(PUSHES)]
    assert all(len(each) == 1 for each in told.values())
    found = house.chains(chain)
    assert found == house.as_one_alone(chain, Instant(time.time_ns()))
    assert len(found[chain][1]) - FOUNDING == PUSHES
    assert sum(rows_in(raws) for each, (_, raws) in found.items() if each != chain) == 8 * PUSHES

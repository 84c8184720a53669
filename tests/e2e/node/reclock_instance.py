"""``reclock_instance.py FOLDER CHAIN COPY``: one instance as a process of its own, over a folder, to the end.

``TOPIC`` is the URL of a topic of Kafka, which is the source instead of files; with ``PUSHES`` it pushes the files of
``pushes`` instead. ``CLOCK`` is by how many seconds its clock is wrong; with ``KILL_AT=N`` it kills itself (SIGKILL) at
its Nth write to the folder, ``KILL_AFTER`` says that this write is done first.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import trio

sys.path.insert(0, str(Path(__file__).parents[2]))
from chain.ids import DatasetId
from chain.instant import SECOND, Instant
from odfd.reclock.instance import Instance
from odfd.reclock.push_once import PushedFiles, push
from odfd.reclock.shared_chains import SharedChains
from worlds.instances import declared, dependencies, end_of, pushed
from worlds.topics import topic_source


def main(folder: Path, chain: DatasetId, copy: str) -> None:
    files = end_of(lambda: os.kill(os.getpid(), signal.SIGKILL))("house", folder / "house")
    files.dies_at, files.after = int(os.environ.get("KILL_AT", "0")), "KILL_AFTER" in os.environ
    wrong = int(os.environ.get("CLOCK", "0")) * SECOND
    own = folder / copy
    (own / "staging").mkdir(parents=True, exist_ok=True)
    place = SharedChains(files, own, f"{copy} {os.getpid()}")
    deps = dependencies(place, own / "staging", lambda: Instant(time.time_ns() + wrong))
    topic = os.environ.get("TOPIC")
    source = declared(folder / "source", ledger=False) if topic is None else topic_source(topic)
    if "PUSHES" in os.environ:
        pushes(Instance(deps, place, chain, (pushed(ledger=False),)), folder / "pushes")
        place.close()
        return
    counts = trio.run(Instance(deps, place, chain, source).run)
    sys.stdout.write(f"{counts.bound} {counts.forgotten} {counts.written} {counts.repeated}\n")
    place.close()


def pushes(instance: Instance, folder: Path) -> None:
    """Pushes each file under its name, and prints the receipts as lines of JSON."""
    for file in sorted(folder.iterdir()):
        receipt = trio.run(push, instance, PushedFiles(files=(file,), id=file.stem))
        told = [(str(each.block), each.first, each.last) for each in receipt.shards]
        sys.stdout.write(json.dumps([receipt.id, receipt.time, told]) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), DatasetId.parse(sys.argv[2]), sys.argv[3])

"""Death at every durable step of a commit: what is found after is the old state or the new, and the work can go on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from chain.multihash import Multihash
from chain.store.database import open_database
from chain.store.objects import DiskObjects
from chain.store.sqlite import SqliteChains
from worlds import crashing_writer as writer

OBJECT_STEPS = ["object-hashed", "object-synced", "object-renamed", "object-folder-synced"]
COMMIT_STEPS = ["commit-begun", "commit-objects", "commit-blocks", "commit-also", "commit-durable"]
POINTS = [f"{step}:1" for step in OBJECT_STEPS] + [f"{step}:{n}" for n in (1, 2) for step in COMMIT_STEPS]


def run(directory: Path, step: str) -> int:
    """How a process ended that wrote: a fork of this one, which has all imported already."""
    child = os.fork()
    if child == 0:
        code = 70
        try:
            writer.main(directory, step)
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def sizes(directory: Path) -> tuple[list[int], list[int]]:
    """Lengths of both chains and the rows beside them; checks that whatever is there is whole."""
    database = open_database(directory / "odfd.sqlite")
    objects = DiskObjects(directory / "objects", database)
    chains = SqliteChains(database, objects)
    found = []
    for dataset in writer.DATASETS:
        raws = list(chains.chain(dataset).raw_blocks(0, 99))
        assert raws == [block.raw for block in writer.chain_of(dataset)[: len(raws)]]
        head = chains.chain(dataset).head()
        assert (head.size if head else 0) == len(raws)
        found.append(len(raws))
    if any(found):
        assert objects.read(Multihash.sha3_256(writer.LARGE)) == writer.LARGE
        assert objects.read(Multihash.sha3_256(writer.SMALL)) == writer.SMALL
    with database.read() as connection:
        rows = connection.execute("SELECT size FROM notes ORDER BY size").fetchall()
    assert list((directory / "objects" / ".staging").iterdir()) == []
    database.close()
    return found, [row[0] for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_a_killed_commit_is_all_or_nothing(point: str, tmp_path: Path) -> None:
    assert run(tmp_path, point) == 9
    step, _, number = point.partition(":")
    commits = 0 if step in OBJECT_STEPS else int(number) - (step != "commit-durable")
    expected = {0: ([0, 0], []), 1: ([1, 1], [1]), 2: ([3, 3], [1, 3])}
    assert sizes(tmp_path) == expected[commits]
    assert run(tmp_path, "none") == 0
    assert sizes(tmp_path) == expected[2]
    assert run(tmp_path, "none") == 0
    assert sizes(tmp_path) == expected[2]

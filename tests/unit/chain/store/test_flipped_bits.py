"""One bit flips somewhere in a node's database or objects: it is found, or it changed nothing that can be asked for.

ODFD_FLIPS=20000 makes it a long run.
"""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from chain.errors import Environment, Invalid
from chain.ids import DatasetId
from chain.multihash import Multihash
from chain.state import ChainState, load_state
from chain.store.database import open_database
from chain.store.objects import DiskObjects
from chain.store.sqlite import SqliteChain, SqliteChains
from odfd.transfer.folders import import_dataset
from odfd.verify.verify import Request, verify_chain

FLIGHTS = Path(__file__).parents[3] / "golden" / "kamu" / "flights"
FLIPS = int(os.environ.get("ODFD_FLIPS", "150"))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("node")
    database = open_database(directory / "odfd.sqlite")
    objects = DiskObjects(directory / "objects", database)
    import_dataset(FLIGHTS, SqliteChains(database, objects), objects)
    database.close()
    return directory


Served = tuple[list[bytes], ChainState, list[bytes]]


def served(chain: SqliteChain, objects: DiskObjects, names: list[Multihash]) -> Served:
    """All that others can ask of the dataset: blocks, the state that planners see, bytes of objects."""
    return list(chain.raw_blocks(0, 999)), load_state(chain), [objects.read(name) for name in names]


def found(directory: Path, dataset: DatasetId, names: list[Multihash], truth: Served) -> str:
    """How a damaged node says so; empty when everything is as it was. Fails when it gives a wrong answer unnoticed."""
    try:
        database = open_database(directory / "odfd.sqlite")
    except Environment as error:
        return error.rule
    try:
        objects = DiskObjects(directory / "objects", database)
        chain = SqliteChains(database, objects).chain(dataset)
        if not verify_chain(chain, objects, Request(ref="x", workers=1)).ok:
            return "verify"
        if problems := database.damage():
            return problems[0]
        assert served(chain, objects, names) == truth, "a wrong answer that verification did not find"
    except (Environment, Invalid) as error:
        return error.rule or "?"
    finally:
        database.close()
    return ""


def test_every_flip_is_found_or_harmless(node: Path, tmp_path: Path) -> None:
    database = open_database(node / "odfd.sqlite")
    objects = DiskObjects(node / "objects", database)
    dataset = SqliteChains(database, objects).datasets()[0]
    chain = SqliteChains(database, objects).chain(dataset)
    names = list(objects.names())
    truth = served(chain, objects, names)
    database.close()
    files = sorted(
        file for file in node.rglob("*") if file.is_file() and file.stat().st_size and ".small" not in file.parts
    )
    weights = [file.stat().st_size for file in files]
    lot = random.Random(13)
    answers = []
    for number in range(FLIPS):
        copy = tmp_path / f"{number}"
        shutil.copytree(node, copy)
        victim = copy / lot.choices(files, weights)[0].relative_to(node)
        victim.chmod(0o644)
        with victim.open("r+b") as file:
            at = lot.randrange(victim.stat().st_size)
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ 1 << lot.randrange(8)]))
        answers.append(found(copy, dataset, names, truth))
        shutil.rmtree(copy)
    assert answers.count("") < FLIPS / 2, "most flips hit nothing: the node is too empty to prove anything"
    assert "verify" in answers

"""Measures a node with many datasets against one with few: to start, to list, to collect, to ingest again."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from bench.measure import Row, Side, Size, in_turns, seconds
from bench.node import daemon, odfctl, settle
from bench.store import opened
from chain.codec.blocks import encode_block
from chain.ids import DatasetId
from chain.instant import Instant
from chain.model.block import MetadataBlock
from chain.model.events import DatasetKind, Seed
from chain.store.base import Append
from chain.store.collect import collect
from demo.nodes import Node
from odfd.services.views.cache import QUIET_SECONDS

_MANIFEST: Final = """kind: DatasetSnapshot
version: 1
content:
  name: d{:05}
  kind: Root
  metadata:
    - kind: AddPushSource
      sourceName: s
      read: {{kind: NdJson}}
      merge: {{kind: Append}}
"""
_AT_ONCE: Final = 250
"""Manifests of one apply."""
_LISTS: Final = (("get", "datasets", "-o", "json"), ("status",))
_LOOK: Final = 0.005
"""Seconds between looks whether a node is ready."""


def measure_datasets(size: Size, folder: Path) -> list[Row]:
    """Starts and lists of nodes that do nothing else."""
    few, many, most = size.pick(2, 10), size.pick(6, 1_000), size.pick(12, 2_000)
    rounds = size.pick(1, 5)
    _fill(folder / "few", few)
    _fill(folder / "many", many)
    firsts = [
        _first([folder / name for name in ("many", "few")], words, (many, few), size.pick(1, 3))
        for words in _LISTS[: size.pick(1, len(_LISTS))]
    ]
    with ExitStack() as stack:
        nodes = [stack.enter_context(daemon(folder / name)) for name in ("many", "few")]
        rows = [_listed(words, [odfctl(node, *words) for node in nodes], (many, few), rounds) for words in _LISTS]
    _fill(folder / "many", most, many)
    sides = (lambda: start_to_ready(folder / "many"), lambda: start_to_ready(folder / "few"))
    starts = in_turns(*sides, size.pick(1, 3), warm=size.pick(0, 1))
    started = Row(
        name="start",
        measures="from the command to ready",
        ours=Side(name=f"{most:,} datasets", costs=starts[0]),
        peer=Side(name=f"{few} datasets", costs=starts[1]),
        goal="<= 1.5",
    )
    return [started, *firsts, *rows]


def _first(folders: Sequence[Path], words: tuple[str, ...], counts: tuple[int, int], rounds: int) -> Row:
    """Of nodes that have just started, and are asked for nothing before."""

    def cost(folder: Path) -> float:
        with _started(folder) as node:
            return seconds(odfctl(node, *words))

    pairs = [[cost(folder) for folder in folders] for _ in range(rounds)]
    ours, peer = zip(*pairs, strict=True)
    return Row(
        name=f"{' '.join(words[:2])}, first",
        measures="wall time of the command, the first after a start",
        ours=Side(name=f"{counts[0]:,} datasets", costs=ours),
        peer=Side(name=f"{counts[1]} datasets", costs=peer),
        goal="<= 2",
    )


def _listed(words: tuple[str, ...], sides: list[Callable[[], str]], counts: tuple[int, int], rounds: int) -> Row:
    ours, peer = in_turns(sides[0], sides[1], rounds)
    return Row(
        name=" ".join(words[:2]),
        measures="wall time of the command, listed before",
        ours=Side(name=f"{counts[0]:,} datasets", costs=ours),
        peer=Side(name=f"{counts[1]} datasets", costs=peer),
        goal="<= 2",
    )


def _fill(folder: Path, count: int, start: int = 0) -> None:
    """Of many: until the node has nothing left to do, and what it shows of them is saved."""
    with daemon(folder) as node:
        for first in range(start, count, _AT_ONCE):
            file = folder / "datasets.yaml"
            file.write_text("---\n".join(map(_MANIFEST.format, range(first, min(count, first + _AT_ONCE)))))
            odfctl(node, "apply", "-q", "-f", str(file))()
        if count >= _AT_ONCE:
            time.sleep(QUIET_SECONDS + 1)
            settle(node)


def start_to_ready(folder: Path) -> None:
    """Until the service manager would be told; what comes of it later is not its start."""
    with _started(folder):
        pass


@contextmanager
def _started(folder: Path) -> Iterator[Node]:
    log = folder / "node" / "odfd.log"
    log.write_bytes(b"")
    with daemon(folder, wait=_until_ready) as node:
        yield node


def _until_ready(node: Node) -> None:
    log = node.folder / "odfd.log"
    while b'"event": "ready"' not in log.read_bytes():
        time.sleep(_LOOK)


def measure_collection(size: Size, folder: Path) -> list[Row]:
    """Measures the collection of unneeded objects, among many chains and among few."""
    few, many, objects = size.pick(2, 10), size.pick(10, 1_000), size.pick(20, 1_000)
    for count in (few, many):
        with opened(folder / str(count)) as (kept, _):
            for number in range(count):
                kept.commit([_seed(number)])

    def freed(count: int) -> Callable[[], None]:
        def run() -> None:
            with _with_garbage(folder / str(count), objects) as place, opened(place) as (kept, stored):
                assert collect(kept, stored).objects == objects

        return run

    ours, peer = in_turns(freed(many), freed(few), size.pick(1, 5))
    return [
        Row(
            name="gc",
            measures=f"{objects:,} objects written and collected",
            ours=Side(name=f"among {many:,} datasets", costs=ours),
            peer=Side(name=f"among {few} datasets", costs=peer),
        )
    ]


@contextmanager
def _with_garbage(source: Path, count: int) -> Iterator[Path]:
    place = source.with_name(f"{source.name}-copy")
    shutil.copytree(source, place)
    with opened(place) as (_, stored):
        for number in range(count):
            stored.add_bytes(number.to_bytes(4, "big"))
        stored.flush()
    yield place
    shutil.rmtree(place)


def _seed(number: int) -> Append:
    dataset = DatasetId.from_public_key(number.to_bytes(32, "big"))
    event = Seed(dataset_id=dataset, dataset_kind=DatasetKind.ROOT)
    block = encode_block(MetadataBlock(system_time=Instant(0), prev_block_hash=None, sequence_number=0, event=event))
    return Append(dataset=dataset, expected=None, blocks=[block])

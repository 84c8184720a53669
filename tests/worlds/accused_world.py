"""A publisher whose derived chain holds a lie, signed and well formed; and an honest node that re-ran it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from chain import instant
from chain.data.parquet import write_slice
from chain.model.events import DatasetKind, ExecuteTransform, Seed, SetTransform, TransformInput
from chain.model.source import SqlQueryStep, TransformSql
from chain.statements import envelope, statement
from chain.statements.keys import SigningKey
from chain.statements.tree import Frontier
from engines.contract import Success
from odfd.transform.driver import Committed, run_transform
from odfd.transform.replay import Replayed, replay
from odfd.trust.evidence import bundle
from odfd.trust.evidence.bundle import Accusation, GatheredBundle, gather
from odfd.trust.validation.attestation_publisher import actual_of
from worlds.fake_engine import FakeEngine
from worlds.statements import head_statement
from worlds.transform_world import World

NOW = instant.parse("2026-11-20T08:00:00Z")
PUBLISHER = SigningKey(b"p" * 32)
INPUT = SigningKey(b"i" * 32)
PIN = "sha256:" + "0" * 64
"""What the small engine says that it is."""


class LyingEngine:
    """Adds one to a number of every transform's first row while ``lies``; else it is ``honest``."""

    def __init__(self, honest: Any = None, column: str = "k") -> None:
        self.honest = honest or FakeEngine()
        self.column = column
        self.lies = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.honest, name)

    async def transform(self, request: Any, on_progress: Any = lambda: None) -> Any:
        answer = await self.honest.transform(request, on_progress)
        if self.lies and isinstance(answer, Success) and answer.new_offset_interval is not None:
            path = Path(request.new_data_path)
            table = pq.read_table(path)
            first = pc.equal(table["offset"], table["offset"][0])
            one = pa.scalar(1, table[self.column].type)
            changed = pc.if_else(first, pc.add(table[self.column], one), table[self.column])
            place = table.schema.get_field_index(self.column)
            write_slice(table.set_column(place, table.schema.field(place), changed), path)
        return answer


def signed_head(key: SigningKey, size: int, root: bytes, head: Any, now: Any = NOW, epoch: int = 0) -> Any:
    said = head_statement(key.dataset_id, size, root, at=now, epoch=epoch, head=head)
    return said, envelope.unseal(envelope.seal(statement.encode(said), key), said.MAX_ENVELOPE)


class Accused:
    """``steps`` transactions over rows of the input, of which the last lies, unless it is ``honest``."""

    def __init__(self, folder: Path, engine: LyingEngine | None = None) -> None:
        self.engine = engine or LyingEngine()
        made_by: Any = self.engine  # it answers as the engine that it wraps
        self.world = World(folder, made_by, root=INPUT.dataset_id, derived=PUBLISHER.dataset_id)
        self.dataset = PUBLISHER.dataset_id

    async def publish(self, steps: int = 2, *, lies: bool = True, pin: str | None = PIN) -> None:
        self.found("select * from x", pin)
        for step in range(1, steps + 1):
            self.world.add_rows([10 * step, 10 * step + 1, 10 * step + 2], 1000 * step)
            await self.derive(lies=lies and step == steps)

    def found(self, query: str, pin: str | None) -> None:
        """Both chains, without data."""
        world = self.world
        self.become(pin)
        world.append(INPUT.dataset_id, Seed(dataset_id=INPUT.dataset_id, dataset_kind=DatasetKind.ROOT))
        seed = Seed(dataset_id=self.dataset, dataset_kind=DatasetKind.DERIVATIVE)
        world.append(self.dataset, seed, _declaration(query, pin))

    def declare(self, query: str, pin: str | None) -> None:
        """The transform anew."""
        self.become(pin)
        self.world.append(self.dataset, _declaration(query, pin))

    def become(self, pin: str | None) -> None:
        """Its engine is the one that it pins: no node appends under another pin, but nobody else need have it."""
        if pin is not None:
            self.engine.honest.digest = pin

    async def derive(self, *, lies: bool) -> None:
        self.engine.lies = lies
        assert isinstance(await run_transform(self.world.deps, self.dataset), Committed)
        self.engine.lies = False

    @property
    def chain(self) -> Any:
        return self.world.chains.chain(self.dataset)

    @property
    def leaves(self) -> list[bytes]:
        size = self.chain.head().size
        return [self.chain.block_at(number).hash.digest for number in range(size)]

    def head(self) -> Any:
        frontier = Frontier().extend(self.leaves)
        return signed_head(PUBLISHER, frontier.size, frontier.root, self.chain.head().hash)

    async def replayed(self) -> tuple[Replayed, bytes | None]:
        """What the last step gives an honest node, and the checkpoint that it started from."""
        last, checkpoint, before = None, None, None
        async for outcome in replay(self.world.deps, self.dataset):
            assert isinstance(outcome, Replayed), outcome
            last, before, checkpoint = outcome, checkpoint, outcome.checkpoint
        assert last is not None
        return last, before

    async def gathered(self) -> GatheredBundle:
        outcome, checkpoint = await self.replayed()
        assert isinstance(outcome.event, ExecuteTransform)
        said, signed = self.head()
        case = Accusation(
            head=said,
            signed=signed,
            step=outcome.block,
            checkpoint=checkpoint,
            actual=actual_of(outcome.event, outcome.data),
        )
        found = gather(self.world.chains, self.world.objects, case)
        assert isinstance(found, GatheredBundle), found
        return found

    async def bundle(self) -> bytes:
        return packed(await self.gathered())


def _declaration(query: str, pin: str | None) -> SetTransform:
    transform = TransformSql(engine="spark", version=pin, queries=(SqlQueryStep(query=query),))
    return SetTransform(inputs=(TransformInput(dataset_ref=str(INPUT.dataset_id), alias="x"),), transform=transform)


def packed(found: GatheredBundle) -> bytes:
    """The file's bytes."""
    out = io.BytesIO()
    bundle.write(found.manifest, lambda each: _opened(found.sources[each.hash]), out)
    return out.getvalue()


def _opened(source: bytes | Path) -> Any:
    return io.BytesIO(source) if isinstance(source, bytes) else source.open("rb")


def table_of(path: Path) -> pa.Table:
    return pq.read_table(path)

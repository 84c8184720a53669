"""The rows of a mirrored collection, of which each chain was a mirror by itself, are gathered into one."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from chain.ids import DatasetId
from chain.instant import Instant
from chain.store.database import Database
from odfd.renditions import former_rows
from odfd.renditions.former_rows import FormerCollection
from odfd.renditions.timeline import RenditionRow, Switch, Timeline
from odfd.resources import tables as resources
from odfd.resources.resource import Resource, handle_of
from odfd.resources.store import ResourceStore
from odfd.store import collections, mirror_specs
from odfd.store.catalog import Catalog
from odfd.store.collections import CollectionState, Member
from odfd.store.mirror_specs import MirrorSpec

NOW = Instant(7)
IDS = tuple(DatasetId.from_public_key(bytes([number]) * 32) for number in (1, 2, 3))
FIRST, ACTIVE, SHARD = map(str, IDS)


def mirror(did: str, name: str, **more: Any) -> MirrorSpec:
    return MirrorSpec(dataset=did, name=name, want="chain", priority=5, **more)


def test_the_mirror_that_people_declared_is_that_of_the_collection(tmp_path: Path) -> None:
    with contextlib.closing(Database(tmp_path / "odfd.sqlite")) as database:
        database.migrate_all([(resources.ROOM, resources.STEPS), (collections.ROOM, collections.STEPS)])
        specs = (
            mirror(FIRST, "theirs.r0", via="https://example.org/old"),
            mirror(ACTIVE, "theirs", via="https://example.org/new"),
            mirror(SHARD, "theirs.r1.s1", paused=True),
        )
        with database.write() as connection:
            store = ResourceStore(connection)
            for number, each in enumerate(specs):
                for type_, spec in (("Dataset", None), ("Mirror", mirror_specs.to_resource(each))):
                    labels = {"topic": "health"} if type_ == "Mirror" and number == 0 else {}
                    store.put(
                        Resource(id=f"{type_}{number}", type=type_, name=each.name, did=each.dataset, spec=spec,
                                 labels=labels, created_at=NOW, updated_at=NOW), NOW,
                    )  # fmt: skip
            meant = store.get("Dataset1")
            assert meant is not None
            references = {"Dataset:theirs": handle_of(meant)}
            flow = Resource(id="f", type="Flow", name="f", references=references, created_at=NOW, updated_at=NOW)
            store.put(flow, NOW)
            rows = RenditionRow(number=0, shards=(FIRST,)), RenditionRow(number=1, shards=(ACTIVE, SHARD))
            timeline = Timeline((Switch(0, "", rows[0]), Switch(1, "c", rows[1])), 2)
            members = tuple(Member(row=row, origin="owner") for row in rows)
            collections.keep(connection, CollectionState(id=IDS[0], members=members, timeline=timeline))
            (line,) = former_rows.gather(
                connection, [FormerCollection(chains=(FIRST, ACTIVE, SHARD), active=ACTIVE, renditions=2)]
            )
        assert line.startswith("the dataset theirs is one resource over 3 chains of 2 renditions: ")
        with database.read() as connection:
            store = ResourceStore(connection)
            (dataset,), (whole,) = store.all("Dataset"), store.all("Mirror")
            assert [(each.id, each.name, each.did) for each in (dataset, whole)] == [
                ("Dataset0", "theirs", ACTIVE), ("Mirror0", "theirs", ACTIVE),
            ]  # fmt: skip
            assert whole.labels == {"topic": "health"}
            assert [mirror_specs.of(connection, each) for each in IDS] == [*specs]
            assert {each.dataset for each in mirror_specs.all_of(connection)} == {FIRST, ACTIVE, SHARD}
            assert [each.name for each in Catalog(connection).chains()] == ["theirs", "theirs.r0", "theirs.r1.s1"]
            held = store.get("f")
            assert held is not None
            assert held.references == {"Dataset:theirs": handle_of(dataset)}
            assert store.deleting() == []

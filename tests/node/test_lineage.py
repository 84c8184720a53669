"""From a record to where it was ingested, and from inputs to what is derived of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from node.test_shards_of_peers import CITIES

from chain.errors import Environment, Invalid, NotFound
from chain.ids import DatasetId
from chain.model.events import TransformInput
from chain.state import load_state
from engines.contract import ProvenanceAbsence, ProvenancePath, ProvenanceRow, RecordProvenance, ignore_progress
from engines.errors import EngineFault
from odfd.cli.lineage_text import record_tree
from odfd.control import wire
from odfd.services.views.derivative_index import DerivativeIndex
from worlds.counted import Questions, questions
from worlds.manifests import DERIVED, ROOT, in_shards
from worlds.node_world import Node, World

# From a record to where it was ingested, on a node with the small engine.


ROWS = ("2024-01-01T00:00:00Z,Graz,300000", "2024-01-02T00:00:00Z,Linz,210000")
ROW = ProvenanceRow(input=0, offset=0, role="value", path=0)
MORE = ("2024-01-03T00:00:00Z,Wels,62000",)


async def filled(world: World, alice: Node) -> None:
    """Two files, two transactions; villages repeats towns."""
    world.write("alice", "a.csv", *ROWS)
    again = DERIVED.replace("name: towns", "name: villages").replace("cities", "towns")
    await alice.apply(ROOT, DERIVED, again)
    await alice.pull()
    world.write("alice", "b.csv", *MORE)
    for name in ("cities", "towns", "villages"):
        await alice.pull(name)


async def trace(node: Node, ref: str, record: int, **more: Any) -> wire.Lineage:
    answer: wire.Lineage = await node.done(node.api.lineage.trace(ref, wire.LineageRequest(record=record, **more)))
    return answer


async def test_a_record_is_followed_down_to_its_file(world: World) -> None:
    async with world.running("alice") as alice:
        await filled(world, alice)
        for record, city, file in ((0, "Graz", "a.csv"), (1, "Linz", "a.csv"), (2, "Wels", "b.csv")):
            answer = await trace(alice, "villages", record)
            assert answer.complete
            top, middle, bottom = answer.records
            assert [each.ref for each in answer.records] == ["villages", "towns", "cities"]
            assert [each.state for each in answer.records] == ["derived", "derived", "ingested"]
            assert [(row.ref, row.offset, row.role) for row in top.rows] == [("towns", record, "value")]
            assert [(row.ref, row.offset) for row in middle.rows] == [("cities", record)]
            assert top.row is not None
            assert top.row["city"] == city
            assert "op" not in top.row
            assert bottom.origin is not None
            assert (bottom.origin.kind, bottom.origin.address, bottom.origin.state) == ("polling", "*.csv", file)
            blocks = alice.home.chains.chain(alice.dataset("cities"))
            assert bottom.block == str(blocks.block_at(bottom.sequence_number).hash)


async def test_a_root_s_record_is_where_it_begins(world: World) -> None:
    async with world.running("alice") as alice:
        await filled(world, alice)
        (only,) = (await trace(alice, "cities", 1)).records
        assert only.state == "ingested"
        assert only.origin is not None
        assert only.op == 0


async def test_a_collection_of_shards_is_one_node_of_the_graph(world: World) -> None:
    """Asked from above, from below, and described; it has the rows of all its shards."""
    async with world.running("alice") as alice:
        world.write("alice", "a.csv", *(f"2024-01-0{day}T00:00:00Z,{city},{day}" for day, city in enumerate(CITIES, 1)))
        await alice.apply(in_shards(ROOT), DERIVED)
        await alice.pull("cities")
        await alice.pull("towns")
        for ref, other, relation in (("towns", "cities", "upstream"), ("cities", "towns", "downstream")):
            graph = await alice.api.lineage.graph(ref)
            assert [(each.ref, each.relation) for each in graph.nodes] == [(ref, "self"), (other, relation)]
            nodes = {each.ref: each for each in graph.nodes}
            assert nodes["cities"].records == len(CITIES)
            assert [(each.ref, each.alias) for each in nodes["towns"].inputs] == [("cities", "cities")]
        detail = await alice.api.datasets.describe("towns")
        assert detail.inputs == (f"cities ({alice.dataset('cities')})",)


async def test_a_record_of_several_shards_is_that_of_each(world: World) -> None:
    """Offsets count in each shard; the rows say which of them is meant, and an id asks for one."""
    async with world.running("alice") as alice:
        world.write("alice", "a.csv", *(f"2024-01-0{day}T00:00:00Z,{city},{day}" for day, city in enumerate(CITIES, 1)))
        await alice.apply(in_shards(ROOT))
        await alice.pull()
        shards = alice.home.shards_of(alice.dataset("cities"))
        most = [load_state(alice.home.chains.chain(each)).next_offset for each in shards]
        assert (len(most), sum(most)) == (3, len(CITIES))
        found = set()
        for record in range(max(most)):
            answer = await trace(alice, "cities", record)
            having = [str(each) for each, count in zip(shards, most, strict=True) if count > record]
            assert [each.id for each in answer.records] == having
            assert answer.roots == (tuple(having) if len(having) > 1 else ())
            found |= {each.row["city"] for each in answer.records if each.row is not None}
            text = record_tree(answer)
            assert all(each.row is None or each.row["city"] in text for each in answer.records)
        assert found == set(CITIES)
        with pytest.raises(NotFound, match="no record 99"):
            await trace(alice, "cities", 99)
        (one,) = (await trace(alice, having[0], 0)).records
        assert one.id == having[0]


@pytest.mark.parametrize(
    ("ref", "asked", "rule", "said"),
    [
        ("towns", {"record": 3}, "lineage-record", "towns has no record 3"),
        ("towns", {"record": 0, "column": "mayor"}, "lineage-column", "towns has no data column 'mayor'"),
        ("towns", {"record": 0, "column": "offset"}, "lineage-column", "towns has no data column 'offset'"),
        ("towns", {"record": 0, "limit": 0}, "lineage-limit", "limit 0"),
        ("twons", {"record": 0}, "dataset-ref", "no dataset 'twons' here"),
    ],
)
async def test_a_question_about_nothing_is_told_at_once(
    world: World, ref: str, asked: dict[str, Any], rule: str, said: str
) -> None:
    async with world.running("alice") as alice:
        await filled(world, alice)
        with pytest.raises((Invalid, NotFound), match=said) as told:
            await alice.api.lineage.trace(ref, wire.LineageRequest(**asked))
        assert told.value.rule == rule
        assert told.value.hint


async def test_a_dataset_without_records_says_so(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(ROOT)
        with pytest.raises(NotFound, match="cities has no record 0") as told:
            await alice.api.lineage.trace("cities", wire.LineageRequest(record=0))
        assert told.value.hint == "it has no records yet"


async def test_what_is_not_here_is_said_where_it_is_missing(world: World) -> None:
    async with world.running("alice") as alice:
        await filled(world, alice)
        chain = alice.home.chains.chain(alice.dataset("cities"))
        for number in range(chain.head().size):
            event = chain.block_at(number).event
            if getattr(event, "new_data", None) is not None:
                alice.home.objects.remove(event.new_data.physical_hash)
        answer = await trace(alice, "villages", 0)
        assert not answer.complete
        top, middle = answer.records
        assert top.state == "derived"
        assert (middle.ref, middle.state) == ("towns", "unknown")
        assert middle.problem is not None
        assert "data of input cities is not held here" in middle.problem.detail
        (root,) = (await trace(alice, "cities", 0)).records
        assert (root.state, root.row) == ("ingested", None)
        assert root.origin is not None
        alice.home.chains.drop(alice.dataset("cities"))
        (_, middle) = (await trace(alice, "villages", 0)).records
        assert middle.problem is not None
        assert "is not held here" in middle.problem.detail
        assert middle.problem.hint.startswith("odfctl mirror add did:odf:")
        with pytest.raises(NotFound, match="is not held here"):
            await trace(alice, "towns", 0)


async def test_a_column_is_asked_of_the_first_record_alone(world: World) -> None:
    async with world.running("alice") as alice:
        await filled(world, alice)
        asked = []
        derive = alice.engine.derive_provenance

        async def watched(request: Any, on_progress: Any = ignore_progress) -> Any:
            asked.append((request.column, request.offsets, request.limit))
            return await derive(request, on_progress)

        alice.engine.derive_provenance = watched
        assert (await trace(alice, "villages", 2, column="city", limit=7)).complete
        assert asked == [("city", (2,), 7), (None, (2,), 7)]


async def test_a_strangers_checkpoint_hides_no_block(world: World, monkeypatch: Any) -> None:
    """Attack T-VERDICT-03: a checkpoint that hides the origin of a record.

    Defence: for datasets of others the engine gets every block, whatever their checkpoints say; a record that it does
    not reproduce is not explained.

    Ours says which blocks still matter; the last one is given besides, for its watermark.
    """
    async with world.running("alice") as alice:
        await filled(world, alice)
        world.write("alice", "c.csv", "2024-01-04T00:00:00Z,Enns,12000")
        for name in ("cities", "towns"):
            await alice.pull(name)
        given = []
        derive = alice.engine.derive_provenance

        async def watched(request: Any, on_progress: Any = ignore_progress) -> Any:
            given.append([block.reopened for block in request.query_inputs[0].blocks])
            return await derive(request, on_progress)

        alice.engine.derive_provenance = watched
        monkeypatch.setattr("odfd.services.lineage.question._open", lambda *_: {})
        await trace(alice, "towns", 3)
        monkeypatch.setattr(alice.home.keys, "has_dataset_key", lambda _: False)
        assert (await trace(alice, "towns", 3)).complete
        assert given == [[True, False], [True, True, False]]


async def test_a_transaction_that_hides_an_input_is_told(world: World, monkeypatch: Any) -> None:
    async with world.running("alice") as alice:
        await filled(world, alice)
        stranger = DatasetId.from_public_key(b"x" * 32)
        declared = [(stranger, TransformInput(dataset_ref=str(stranger), alias="cities"))]
        monkeypatch.setattr("odfd.services.lineage.question.input_ids", lambda _: declared)
        with pytest.raises(Invalid, match="does not say what it consumed of input cities"):
            await trace(alice, "towns", 0)


async def test_a_long_answer_is_cut_and_says_so(world: World, monkeypatch: Any) -> None:
    async with world.running("alice") as alice:
        await filled(world, alice)
        monkeypatch.setattr("odfd.services.lineage.trace.MAX_FOLLOWED", 2)
        answer = await trace(alice, "villages", 0)
        assert [each.ref for each in answer.records] == ["villages", "towns"]
        assert not answer.complete
        monkeypatch.setattr("odfd.services.lineage.trace.MAX_FOLLOWED", 9)
        monkeypatch.setattr("odfd.services.lineage.trace.MAX_TOLD", 1)
        answer = await trace(alice, "villages", 0)
        assert [each.ref for each in answer.records] == ["villages"]
        assert not answer.complete


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"records": ()}, "other records"),
        ({"paths": (ProvenancePath(input=1),)}, "an input that the query does not have"),
        ({"paths": ()}, "a path that it did not describe"),
        ({"records": (RecordProvenance(offset=0, op=0, count=9, absences=(ProvenanceAbsence(path=3),)),)}, "a path"),
        ({"records": (RecordProvenance(offset=0, op=0, count=0, rows=(ROW,)),)}, "more rows"),
    ],
)
async def test_an_engine_is_not_believed(world: World, wrong: dict[str, Any], said: str) -> None:
    async with world.running("alice") as alice:
        await filled(world, alice)
        derive = alice.engine.derive_provenance

        async def other(request: Any, on_progress: Any = ignore_progress) -> Any:
            answer = await derive(request, on_progress)
            return msgspec.structs.replace(answer, **wrong)

        alice.engine.derive_provenance = other
        with pytest.raises(EngineFault, match=said):
            await trace(alice, "towns", 0)


async def test_the_graph_of_datasets(world: World) -> None:
    async with world.running("alice") as alice:
        await filled(world, alice)
        graph = await alice.api.lineage.graph("towns")
        assert [(node.ref, node.relation, node.kind) for node in graph.nodes] == [
            ("towns", "self", "derivative"),
            ("cities", "upstream", "root"),
            ("villages", "downstream", "derivative"),
        ]
        assert graph.nodes[1].source == "*.csv"
        assert [(each.ref, each.alias) for each in graph.nodes[0].inputs] == [("cities", "cities")]
        alice.home.chains.drop(alice.dataset("cities"))
        gone = (await alice.api.lineage.graph("villages")).nodes[-1]
        assert (gone.relation, gone.kind) == ("upstream", None)
        assert gone.problem is not None
        assert gone.problem.hint.startswith("odfctl mirror add")


# Derived datasets by their inputs: what all chains say, after whatever was applied, altered and deleted.


__all__ = ["questions"]


def root(name: str) -> str:
    return ROOT.replace("name: cities", f"name: {name}")


def derived(name: str, source: str) -> str:
    return DERIVED.replace("name: towns", f"name: {name}").replace("datasetRef: cities", f"datasetRef: {source}")


def agrees(index: DerivativeIndex, home: Any) -> dict[str, list[str]]:
    """What the index says of each dataset, which is what a fresh one reads from all chains."""
    said = {entry.name: [each.name for each in index.of(entry.id)] for entry in home.entries()}
    fresh = DerivativeIndex(home)
    assert said == {entry.name: [each.name for each in fresh.of(entry.id)] for entry in home.entries()}
    assert all(index.has_any(entry.id) == bool(said[entry.name]) for entry in home.entries())
    assert index.inputs(frozenset) == {entry.id for entry in home.entries() if said[entry.name]}
    return {name: found for name, found in said.items() if found}


async def test_the_index_follows_what_is_applied_altered_and_deleted(world: World) -> None:
    async with world.running("alice") as node:
        await node.apply(root("cities"), root("rivers"), derived("towns", "cities"))
        index = DerivativeIndex(node.home)
        assert agrees(index, node.home) == {"cities": ["towns"]}
        await node.apply(derived("villages", "cities"), derived("streets", "towns"))
        assert agrees(index, node.home) == {"cities": ["towns", "villages"], "towns": ["streets"]}
        await node.api.declarations.delete("Dataset", "villages")
        assert agrees(index, node.home) == {"cities": ["towns"], "towns": ["streets"]}
        await node.api.declarations.delete("Dataset", "streets", purge=True)
        assert agrees(index, node.home) == {"cities": ["towns"]}


async def test_a_question_reads_no_chain_that_was_not_written(
    world: World, questions: Questions, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.running("alice") as node:
        await node.apply(root("cities"), root("rivers"), *(derived(f"d{each}", "cities") for each in range(9)))
    node = world.node("alice")
    index, cities, rivers = DerivativeIndex(node.home), node.dataset("cities"), node.dataset("rivers")
    assert index.has_any(cities)
    with questions.during() as asked:
        assert not index.has_any(rivers)
    assert not asked
    reads: list[DatasetId] = []
    read = DerivativeIndex._read
    monkeypatch.setattr(DerivativeIndex, "_read", lambda self, each: reads.append(each) or read(self, each))
    with node.home.database.write() as connection:
        connection.execute("UPDATE datasets SET id = id WHERE id = ?", (rivers,))
    assert index.has_any(cities)
    assert reads == [rivers]


async def test_a_damaged_transform_is_told_by_each_question_until_it_is_read(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.running("alice") as node:
        await node.apply(root("cities"), derived("towns", "cities"))
        index, cities, towns = DerivativeIndex(node.home), node.dataset("cities"), node.dataset("towns")

        def damaged(self: DerivativeIndex, dataset: DatasetId) -> frozenset[str]:
            if dataset == towns:
                raise Environment("block 1 is damaged", rule="block-damaged")
            return read(self, dataset)

        read = DerivativeIndex._read
        monkeypatch.setattr(DerivativeIndex, "_read", damaged)
        for _ in range(2):
            with pytest.raises(Environment, match="damaged"):
                index.has_any(cities)
        monkeypatch.undo()
        assert index.has_any(cities)

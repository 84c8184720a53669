"""Resources as they stand: plans are pure, batches are whole, and what stands is the sum of what was told."""

from __future__ import annotations

import itertools
import json
import re
import sqlite3
from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from chain.codec.bind import plain_of
from chain.errors import Invalid
from chain.instant import Instant
from odfd.resources import tables
from odfd.resources.owners import OwnedPart, keep_parts
from odfd.resources.plan import DesiredResource, PlannedResource, Terms, TypeRules, plan
from odfd.resources.references import Reference, find_cycle, reference_key, references_of, refers_to
from odfd.resources.resource import OwnerReference, Resource, fold
from odfd.resources.selectors import (
    MAX_DEPTH,
    first_equality,
    matches,
    name_pattern,
    parse_filter,
    parse_selector,
    selecting,
    selector_text,
)
from odfd.resources.store import ResourceStore
from worlds.depth import share

NOW = Instant(1_000)


@pytest.fixture(scope="module")
def empty() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    for step in tables.STEPS:
        if isinstance(step, str):
            connection.executescript(step)
    yield connection
    connection.close()


def desired(name: str, value: Any = 1, **more: Any) -> DesiredResource:
    return DesiredResource(
        type="VariableSet", name=name, spec={"variables": {"x": value}}, place=f"{name}.yaml:2", **more
    )


class Shelf:
    """A store in its own transaction, which is taken back at the end."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.db = connection
        self.store = ResourceStore(connection)
        self.ids = (f"00000000-0000-4000-8000-{number:012}" for number in itertools.count(1))
        self.time = itertools.count(2_000)

    def __enter__(self) -> Shelf:
        self.db.execute("BEGIN")
        return self

    def __exit__(self, *_: object) -> None:
        self.db.execute("ROLLBACK")

    def plan(self, *desired: DesiredResource, manager: str = "odfctl") -> tuple[list[PlannedResource], list[Invalid]]:
        return plan(desired, self.store, lambda: next(self.ids), Instant(next(self.time)), Terms(manager))

    def apply(self, *desired: DesiredResource, manager: str = "odfctl") -> list[str]:
        planned, faults = self.plan(*desired, manager=manager)
        assert not faults
        changed = [each.after for each in planned if each.action != "unchanged"]
        self.store.put_all(changed, Instant(next(self.time)))
        return [each.action for each in planned]

    def standing(self) -> dict[str, tuple[Any, ...]]:
        return {each.name: (each.spec, each.labels, each.annotations) for each in self.store.all()}


def test_a_second_apply_is_unchanged_and_tells_nothing(empty: sqlite3.Connection) -> None:
    with Shelf(empty) as shelf:
        batch = [desired("a", labels={"env": "prod"}), desired("b", annotations={"note": {"by": ["me"]}})]
        assert shelf.apply(*batch) == ["created", "created"]
        newest = shelf.store.newest()
        assert shelf.apply(*reversed(batch)) == ["unchanged", "unchanged"]
        assert shelf.store.newest() == newest


def test_ids_do_not_depend_on_the_order_of_manifests(empty: sqlite3.Connection) -> None:
    found = []
    for batch in itertools.permutations([desired("c"), desired("a"), desired("B")]):
        with Shelf(empty) as shelf:
            shelf.apply(*batch)
            found.append({each.name: each.id for each in shelf.store.all()})
    assert all(each == found[0] for each in found)


def test_an_id_is_exactly_that_resource_and_never_makes_one(empty: sqlite3.Connection) -> None:
    with Shelf(empty) as shelf:
        shelf.apply(desired("a"))
        _, faults = shelf.plan(desired("a", id="00000000-0000-4000-8000-00000000ffff"))
        assert [each.rule for each in faults] == ["no-such-id"]
        held = shelf.store.find_named("VariableSet", "A", None)
        assert held is not None
        assert shelf.plan(desired("a", id=held.id))[0][0].action == "unchanged"


def test_two_resources_swap_their_names_in_one_batch(empty: sqlite3.Connection) -> None:
    with Shelf(empty) as shelf:
        shelf.apply(desired("a", 1), desired("b", 2))
        ids = {each.name: each.id for each in shelf.store.all()}
        assert shelf.apply(desired("b", 1, id=ids["a"]), desired("a", 2, id=ids["b"])) == ["updated", "updated"]
        assert {each.name: each.id for each in shelf.store.all()} == {"a": ids["b"], "b": ids["a"]}
        _, faults = shelf.plan(desired("b", 1, id=ids["b"]))
        assert [(each.rule, each.place) for each in faults] == [("name-taken", "b.yaml:2")]


def test_two_manifests_of_one_resource_are_both_wrong(empty: sqlite3.Connection) -> None:
    with Shelf(empty) as shelf:
        shelf.apply(desired("a"))
        held = shelf.store.find_named("VariableSet", "a", None)
        assert held is not None
        for batch in ((desired("x"), desired("X")), (desired("a"), desired("a", id=held.id))):
            _, faults = shelf.plan(*batch)
            assert [each.rule for each in faults] == ["manifest-twice", "manifest-twice"]


def test_one_is_renamed_and_another_made_under_its_name_at_once(empty: sqlite3.Connection) -> None:
    with Shelf(empty) as shelf:
        shelf.apply(desired("a"))
        held = shelf.store.find_named("VariableSet", "a", None)
        assert held is not None
        shelf.apply(desired("a"), desired("z", id=held.id))
        made, renamed = (
            shelf.store.find_named("VariableSet", "a", None),
            shelf.store.find_named("VariableSet", "z", None),
        )
        assert made is not None
        assert renamed is not None
        assert made.id != renamed.id == held.id


def test_a_generation_counts_changes_of_headers_and_spec_alone(empty: sqlite3.Connection) -> None:
    with Shelf(empty) as shelf:
        shelf.apply(desired("a"))
        seen = []
        for each in (desired("a"), desired("a", 2), desired("A", 2), desired("A", 2, labels={"k": 1}), desired("A", 2)):
            shelf.apply(each)
            held = shelf.store.find_named("VariableSet", "a", None)
            assert held is not None
            seen.append(held.generation)
        assert seen == [1, 2, 3, 4, 5]


def test_labels_that_others_set_stay_and_are_taken_over_by_who_writes_them(empty: sqlite3.Connection) -> None:
    with Shelf(empty) as shelf:
        shelf.apply(desired("a", labels={"mine": 1}))
        shelf.apply(desired("a", labels={"theirs": 2}), manager="tool")
        assert shelf.standing()["a"][1] == {"mine": 1, "theirs": 2}
        shelf.apply(desired("a"))
        assert shelf.standing()["a"][1] == {"theirs": 2}
        shelf.apply(desired("a", labels={"theirs": 3}))
        shelf.apply(desired("a"))
        assert shelf.standing()["a"][1] == {}


def test_labels_are_found_by_an_index_and_by_their_value(empty: sqlite3.Connection) -> None:
    with Shelf(empty) as shelf:
        shelf.apply(desired("a", labels={"n": 5}), desired("b", labels={"n": "5"}), desired("c", annotations={"n": 5}))
        assert [each.name for each in shelf.store.all("VariableSet", ("n", "5"))] == ["a", "b"]
        asked: list[str] = []
        empty.set_trace_callback(asked.append)
        shelf.store.all("VariableSet", ("n", 5))
        shelf.store.page("VariableSet", "", 10, ("n", 5))
        empty.set_trace_callback(None)
        asked = [each for each in asked if "res_labels" in each]
        assert len(asked) == 2
        for each in asked:
            plan = [step for *_, step in empty.execute(f"EXPLAIN QUERY PLAN {each}")]
            assert any(step.startswith("SEARCH res_labels USING PRIMARY KEY") for step in plan), plan


names = st.sampled_from(["a", "b", "c", "D"])
values = st.integers(0, 2)
batches = st.lists(
    st.dictionaries(names, st.tuples(values, st.dictionaries(st.sampled_from("xy"), values)), max_size=4), max_size=5
)


@pytest.mark.slow
@given(batches, st.randoms(use_true_random=False))
@settings(max_examples=share(100), deadline=None)
def test_order_and_split_do_not_show(empty: sqlite3.Connection, told: list[dict[str, Any]], chance: Any) -> None:
    with Shelf(empty) as whole:
        generations: dict[str, int] = {}
        for batch in told:
            items = [desired(name, value, labels=labels) for name, (value, labels) in batch.items()]
            before = {each.id: each for each in whole.store.all()}
            whole.apply(*items)
            for each in whole.store.all():
                old = before.get(each.id)
                same = old is not None and (old.name, old.spec, old.labels) == (each.name, each.spec, each.labels)
                assert each.generation == generations.get(each.id, 0) + (not same)
                generations[each.id] = each.generation
        one = whole.standing()
    with Shelf(empty) as split:
        for batch in told:
            items = [desired(name, value, labels=labels) for name, (value, labels) in batch.items()]
            chance.shuffle(items)
            for each in items:
                split.apply(each)
        assert split.standing() == one


@pytest.mark.slow
@given(batches, st.data())
@settings(max_examples=share(100), deadline=None)
def test_what_stands_is_the_sum_of_what_was_told(
    empty: sqlite3.Connection, told: list[dict[str, Any]], data: Any
) -> None:
    """A reader that went on from any number has the same as one that read all."""
    with Shelf(empty) as shelf:
        for batch in told:
            gone = [each for each in shelf.store.all() if each.name not in batch]
            for each in gone[:1]:
                shelf.store.delete(each, NOW)
            shelf.apply(*(desired(name, value, labels=labels) for name, (value, labels) in batch.items()))
        standing = {each.id: each for each in shelf.store.all()}
        news = shelf.store.events(0, 1_000)
        assert fold(news) == standing
        assert [each.rv for each in news] == sorted({each.rv for each in news})
        at = data.draw(st.sampled_from([0, *(each.rv for each in news)]))
        assert fold([each for each in news if each.rv <= at] + shelf.store.events(at, 1_000)) == standing
        assert {each.id: each for each in shelf.store.standing_at(at) or ()} == fold(
            [each for each in news if each.rv <= at]
        )


def test_a_damaged_row_is_no_opinion(empty: sqlite3.Connection) -> None:
    with Shelf(empty) as shelf:
        shelf.apply(desired("a"))
        empty.execute("UPDATE declarations SET body = CAST(replace(CAST(body AS TEXT), '\"x\":1', '\"x\":9') AS BLOB)")
        with pytest.raises(Exception, match="damaged on disk"):
            shelf.store.all()


LABELS = {"env": "prod", "team": "a", "n": 3, "on": True}


@pytest.mark.parametrize(
    ("text", "is_so"),
    [
        ("env=prod", True), ("env==prod", True), ("env = dev", False), ("env!=dev", True), ("n=3", True),
        ("on=true", True), ("team in (a, b)", True),
        ("team notin (a,b)", False), ("old", False), ("!old", True), ("env,n", True),
        ("env=prod,team in (b)", False), ("!env", False),
    ],
)  # fmt: skip
def test_what_people_select_by(text: str, is_so: bool) -> None:
    assert matches(parse_selector(text), "a", LABELS) is is_so


def test_filters_of_manifests() -> None:
    wanted = {"$or": [{"env": "dev"}, {"$not": {"old": {"$exists": True}}}], "n": 3}
    assert matches(parse_filter(wanted), "a", LABELS)
    assert parse_selector(json.dumps(wanted)) == wanted
    assert parse_selector(selector_text(wanted)) == wanted
    assert selector_text({"env": "prod", "big": True}) == "env=prod,big=true"
    assert parse_selector(selector_text({"env": "a,b"})) == {"env": "a,b"}
    assert first_equality({"$and": [{"team": {"$in": ["a"]}}, {"env": "prod"}]}) == ("env", "prod")
    assert first_equality({"$not": {"env": "prod"}}) is None


def test_names_are_selected_by_patterns_in_filters_too() -> None:
    wanted = parse_filter({"$or": [{"$name": "geo.%"}, {"$not": {"$name": "%_%"}}], "env": "prod"})
    found = [name for name in ("geo.a", "GEO.b", "other", "") if matches(wanted, name, LABELS)]
    assert found == ["geo.a", "GEO.b", ""]
    assert not matches(wanted, "geo.a", {"env": "dev"})
    both = selecting("env=prod,team in (a,b)", "geo.%")
    assert both is not None
    assert (matches(parse_selector(both), "geo.a", LABELS), matches(parse_selector(both), "x", LABELS)) == (True, False)
    assert (selecting(None, None), selecting("env=prod", None)) == (None, "env=prod")
    assert first_equality(parse_selector(both)) == ("env", "prod")
    with pytest.raises(Invalid, match="not a pattern of names") as refused:
        selecting(None, "geo.*")
    assert refused.value.rule == "name-pattern"


@pytest.mark.parametrize(
    "wrong",
    [
        {"$name": 1},
        {"$xor": []}, {"env": {"$like": "p%"}}, {"$or": []}, {"$or": {"a": 1}}, {"$not": [1]}, {"a": {"$in": "b"}},
        {"a": {"$exists": 1}}, {"nothing": "here", "$and": [{"$xor": []}]}, [], "env",
    ],
)  # fmt: skip
def test_a_malformed_filter_is_refused_wherever_it_is_wrong(wrong: Any) -> None:
    with pytest.raises(Invalid, match=r"filter|operator|pattern"):
        parse_filter(wrong)
    with pytest.raises(Invalid):
        parse_selector(json.dumps(wrong) if isinstance(wrong, dict) else "{" + json.dumps(wrong))


def test_a_filter_is_nested_so_deep_and_no_deeper() -> None:
    wanted: Any = {"a": 1}
    for _ in range(MAX_DEPTH):
        wanted = {"$not": wanted}
    assert matches(parse_filter(wanted), "a", {"a": 1})
    with pytest.raises(Invalid, match="nested"):
        parse_filter({"$not": {"$not": wanted}})
    with pytest.raises(Invalid):
        parse_selector('{"$not":' * 100_000)


@pytest.mark.parametrize("text", ["", "=", "a in b", "a=(", ",", "a b", "!!a"])
def test_what_is_no_selector_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match="selector"):
        parse_selector(text)


def test_a_resource_is_read_back_as_it_was_written() -> None:
    each = Resource(id="x", type="Dataset", name="a", labels={"a": [1, None]}, created_at=NOW, updated_at=NOW)
    assert msgspec.json.decode(msgspec.json.encode(each), type=Resource) == each


@pytest.mark.slow
@given(batches, st.integers(1, 12), st.integers(0, 12))
@settings(max_examples=share(80), deadline=None)
def test_what_is_removed_is_older_than_what_is_kept(
    empty: sqlite3.Connection, told: list[dict[str, Any]], kept: int, age: int
) -> None:
    """Of the log, never of what stands; what came after the floor is whole, and no number is given twice."""
    with Shelf(empty) as shelf:
        for batch in told:
            shelf.apply(*(desired(name, value, labels=labels) for name, (value, labels) in batch.items()))
        before, standing, newest = shelf.store.events(0, 1_000), shelf.store.all(), shelf.store.newest()
        now = Instant(next(shelf.time))
        shelf.store.trim(now, kept=kept, kept_for=age)
        left, floor = shelf.store.events(0, 1_000), shelf.store.floor()
        assert left == [each for each in before if each.rv > floor]
        young = [each for each in before if each.at > now - age]
        assert left[-kept - len(young) :] == [each for each in before if each in young or each.rv > newest - kept]
        assert shelf.store.all() == standing
        if before:
            shelf.apply(desired("z"))
            assert shelf.store.newest() > newest


def test_a_batch_that_breaks_anywhere_leaves_nothing(
    empty: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = [desired(name, 2) for name in "abc"]
    with Shelf(empty) as shelf:
        shelf.apply(desired("a"), desired("b"))
        before = list(empty.iterdump())
        write, broken = ResourceStore._append, 0
        for at in range(10):
            calls = itertools.count()

            def breaking(store: Any, *args: Any, calls: Any = calls, at: int = at) -> Any:
                if next(calls) == at:
                    raise OSError(28, "No space left on device")
                return write(store, *args)

            empty.execute("SAVEPOINT whole")
            with monkeypatch.context() as patch:
                patch.setattr(ResourceStore, "_append", breaking)
                try:
                    shelf.apply(*batch)
                except OSError:
                    broken += 1
            empty.execute("ROLLBACK TO whole")
            assert list(empty.iterdump()) == before
        assert broken == 3


REF = Annotated[str, refers_to("Thing")]


class Inner(msgspec.Struct, frozen=True, kw_only=True, tag="Inner"):
    one: REF | None = None
    plain: str | None = None


class Other(msgspec.Struct, frozen=True, kw_only=True, tag="Other"):
    many: Annotated[tuple[str, ...], refers_to("Other")]


class Outer(msgspec.Struct, frozen=True, kw_only=True):
    first: REF
    parts: tuple[Inner | Other, ...]
    inner: Inner | None = None


def test_one_walk_finds_the_references_of_any_type() -> None:
    value = Outer(
        first="Thing:a", parts=(Inner(one="b", plain="x"), Other(many=("c", "d")), Inner()), inner=Inner(one="e")
    )
    assert [(each.path, each.key) for each in references_of(Outer, plain_of(value))] == [
        ("spec.first", "Thing:a"), ("spec.parts[0].one", "Thing:b"), ("spec.parts[1].many[0]", "Other:c"),
        ("spec.parts[1].many[1]", "Other:d"), ("spec.inner.one", "Thing:e"),
    ]  # fmt: skip
    assert reference_key("Thing:A", "Thing") == reference_key("a", "Thing") == "Thing:a"
    for wrong in ("Other:a", "a#part", "account/a", "did:odf:none"):
        with pytest.raises(Invalid):
            reference_key(wrong, "Thing")


EDGES = st.dictionaries(st.sampled_from("abcdef"), st.lists(st.sampled_from("abcdef"), max_size=4), max_size=6)


@given(EDGES)
def test_a_circle_is_found_where_there_is_one_and_told_along_its_edges(edges: dict[str, list[str]]) -> None:
    found = find_cycle("abcdef", lambda each: edges.get(each, []))
    reach = {each: set(edges.get(each, [])) for each in "abcdef"}
    for middle, source in itertools.product("abcdef", repeat=2):
        reach[source] |= reach[middle] if middle in reach[source] else set()
    assert (found is not None) == any(each in reach[each] for each in "abcdef")
    if found is not None:
        assert found[0] == found[-1]
        assert all(after in edges[before] for before, after in itertools.pairwise(found))


def _walk(type_: str, spec: Any) -> list[Reference]:
    return [Reference("spec.refs", "VariableSet", each) for each in spec.get("refs", ())]


REFERRING_ACTS = st.lists(
    st.tuples(
        st.sampled_from(("apply", "together", "rename", "delete")), st.sampled_from("abc"), st.sampled_from("abc")
    ),
    max_size=14,
)


@pytest.mark.slow
@given(REFERRING_ACTS)
def test_a_reference_heals_when_its_first_target_comes_and_is_never_captured(
    empty: sqlite3.Connection, acts: list[tuple[str, str, str]]
) -> None:
    """``who`` refers to ``a`` and ``b``; resources of these names come, go and are renamed, in batches of their own."""
    with Shelf(empty) as shelf:
        who = DesiredResource(type="VariableSet", name="who", spec={"refs": ["a", "b"]})

        def apply(*wanted: DesiredResource) -> None:
            planned, faults = plan(wanted, shelf.store, lambda: next(shelf.ids), NOW, rules=TypeRules(walk=_walk))
            assert not faults
            shelf.store.put_all([each.after for each in planned], NOW)

        apply(who)
        meant: dict[str, str | None] = {"a": None, "b": None}
        for act, name, other in acts:
            held = shelf.store.find_named("VariableSet", name, None)
            if act == "apply" and held is None:
                apply(desired(name))
            elif act == "together" and held is None:
                apply(*((who, desired(name)) if other == "a" else (desired(name), who)))
                meant |= {key: None for key, each in meant.items() if each and shelf.store.get(each) is None}
            elif act == "rename" and held is not None and shelf.store.find_named("VariableSet", other, None) is None:
                apply(desired(other, id=held.id))
            elif act == "delete" and held is not None:
                shelf.store.delete(held, NOW)
            for key in meant:
                there = shelf.store.find_named("VariableSet", key, None)
                meant[key] = meant[key] or (there.id if there is not None else None)
            standing = shelf.store.find_named("VariableSet", "who", None)
            assert standing is not None
            found = standing.references
            assert {key: held and held.id for key, held in found.items()} == {
                f"VariableSet:{key}": each for key, each in meant.items()
            }
            living = {held.id: held.name for held in found.values() if held and shelf.store.get(held.id)}
            assert living == {each: shelf.store.get(each).name for each in living}  # type: ignore[union-attr]
            assert shelf.store.dangling(standing.id) == [
                f"VariableSet:{key}" for key, each in meant.items() if each is None or shelf.store.get(each) is None
            ]


def _parts(owner: Resource) -> list[OwnedPart]:
    names = owner.annotations.get("makes", ())
    return [OwnedPart(type="Thing", part=name, name=f"{owner.name}-{name}", spec={}) for name in names]


OWNING_ACTS = st.lists(
    st.tuples(
        st.sampled_from(("apply", "delete", "share", "rename")),
        st.sampled_from("abc"),
        st.lists(st.sampled_from("xy"), unique=True),
    ),
    max_size=12,
)


@given(OWNING_ACTS)
@example([("apply", "c", ["x"]), ("apply", "a", []), ("share", "a", []), ("apply", "c", []), ("apply", "c", ["x"])])
def test_what_is_owned_goes_when_all_its_owners_are_gone_and_nothing_else(
    empty: sqlite3.Connection, acts: list[tuple[str, str, list[str]]]
) -> None:
    """``share``: another owner is written beside those that something has. The model is who owns what."""
    with Shelf(empty) as shelf:
        store = ResourceStore(empty, partial(keep_parts, _parts, lambda: next(shelf.ids)))
        owners: dict[str, set[str]] = {}
        for act, name, makes in acts:
            held = store.find_named("VariableSet", name, None)
            if act == "apply":
                wanted = desired(name, annotations={"makes": makes})
                planned, faults = plan((wanted,), store, lambda: next(shelf.ids), NOW, rules=TypeRules(parts=_parts))
                if not faults:  # one that it made, and gave up to another, has the name still
                    store.put_all([each.after for each in planned], NOW)
            elif act == "delete" and held is not None:
                store.delete(held, NOW)
            elif act == "rename" and held is not None and store.find_named("VariableSet", "other", None) is None:
                store.put(msgspec.structs.replace(held, name="other"), NOW)
            elif act == "share" and held is not None:
                for child in store.all("Thing")[:1]:
                    if all(each.id != held.id for each in child.owners):
                        more = OwnerReference(id=held.id, type=held.type, name=name, part="shared")
                        store.put(msgspec.structs.replace(child, owners=(*child.owners, more)), NOW)
            makers = {each.id: each for each in store.all("VariableSet")}
            things = store.all("Thing")
            for child in things:
                assert child.owners
                assert {each.id for each in child.owners} <= makers.keys(), "it outlives none of its owners"
            made = {(each.id, part.part) for each in makers.values() for part in _parts(each)}
            assert made == {(o.id, o.part) for child in things for o in child.owners if o.part != "shared"}
            owners |= {child.id: {each.id for each in child.owners} for child in things}
            gone = owners.keys() - {child.id for child in things}
            assert {each.id for each in store.deleting()} >= gone, "what acts for it is to be ended"
            for maker in makers.values():
                assert {f"{maker.name}-{part}" for _, part in made if _ == maker.id} <= {each.name for each in things}


def test_what_is_owned_is_not_changed_by_people_and_takes_nobodys_name(empty: sqlite3.Connection) -> None:
    with Shelf(empty) as shelf:
        store = ResourceStore(empty, partial(keep_parts, _parts, lambda: next(shelf.ids)))
        thing = DesiredResource(type="Thing", name="a-x", spec={}, place="1.yaml:2")
        maker = desired("a", annotations={"makes": ["x"]})

        def planned(*wanted: DesiredResource) -> tuple[list[PlannedResource], list[Invalid]]:
            return plan(wanted, store, lambda: next(shelf.ids), NOW, rules=TypeRules(parts=_parts))

        _, faults = planned(maker, thing)
        assert [(each.rule, each.place) for each in faults] == [("name-taken", "a.yaml:2")]
        store.put_all([each.after for each in planned(maker)[0]], NOW)
        for changed, rules in ((thing, []), (msgspec.structs.replace(thing, spec={"y": 1}), ["owned"])):
            assert [each.rule for each in planned(changed)[1]] == rules


def test_the_index_of_labels_follows_them(empty: sqlite3.Connection) -> None:
    with Shelf(empty) as shelf:
        shelf.apply(desired("a", labels={"env": "prod"}), desired("b"))
        assert [each.name for each in shelf.store.all("VariableSet", ("env", "prod"))] == ["a"]
        shelf.apply(desired("a", labels={"env": "dev"}), desired("b", labels={"env": "prod"}))
        assert [each.name for each in shelf.store.all("VariableSet", ("env", "prod"))] == ["b"]


def test_a_deleted_resource_frees_its_name_and_is_told_of(empty: sqlite3.Connection) -> None:
    with Shelf(empty) as shelf:
        shelf.apply(desired("a"))
        first = shelf.store.find_named("VariableSet", "a", None)
        assert first is not None
        at = shelf.store.newest()
        shelf.store.delete(first, NOW)
        assert shelf.store.find_named("VariableSet", "a", None) is None
        assert [(each.op, each.resource.id) for each in shelf.store.events(at, 10)] == [("Deleted", first.id)]
        assert shelf.apply(desired("a")) == ["created"]
        again = shelf.store.find_named("VariableSet", "a", None)
        assert again is not None
        assert again.id != first.id


@given(st.text("ab%_.", max_size=8), st.text("abAB.", max_size=8))
def test_a_pattern_of_names_means_any_text_and_one_character(pattern: str, name: str) -> None:
    wild = {"%": ".*", "_": "."}
    plain = re.compile("".join(wild.get(each, re.escape(each)) for each in pattern), re.IGNORECASE)
    assert (name_pattern(pattern).fullmatch(name) is None) == (plain.fullmatch(name) is None)


def test_a_pattern_of_many_wildcards_is_no_work_for_hours() -> None:
    """Attack T-BYTES-01: a pattern of names with many wildcards, which would keep the interpreter busy for hours.

    Defence: each wildcard takes the first place that fits, in time linear in the pattern.

    Each of them takes the first place that fits, once: else no answer would come.
    """
    assert name_pattern("%a" * 49 + "%b").fullmatch("a" * 100) is None

"""What becomes of resources: phases along the RFC's edges, and attempts one at a time, after pauses that grow."""

from __future__ import annotations

import itertools
import random
import sqlite3

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.errors import Environment, Fault, Invalid, Refused, Remote
from chain.instant import SECOND, Instant
from odfd.errors import Bug
from odfd.resources import tables
from odfd.resources.resource import Resource
from odfd.resources.status import (
    EDGES,
    ConditionValue,
    ResourceStatus,
    fail,
    is_unchanged,
    move,
    pending,
    ready,
    show,
)
from odfd.resources.store import ResourceStore
from odfd.resources.workqueue import HOURLY, LEAST, MOST, WorkQueue

NOW = Instant(1_000 * SECOND)
ACTS = st.lists(st.sampled_from(["change", "attempt", "fail", "crash"]), max_size=12)


def attempted(status: ResourceStatus, fault: Fault | None, generation: int = 1) -> list[ResourceStatus]:
    way = list(pending(status))
    way.append(move(way[-1] if way else status, "Reconciling"))
    told = {"Synced": ConditionValue(value=fault is None)}
    last = ready(way[-1], generation, told, NOW) if fault is None else fail(way[-1], generation, told, fault, None, NOW)
    return [*way, last]


@pytest.mark.slow
@given(ACTS)
def test_p07_every_path_of_phases_is_one_of_the_diagram(acts: list[str]) -> None:
    """As watchers see it, also where an attempt is cut off or overtaken."""
    connection = sqlite3.connect(":memory:")
    for step in tables.STEPS:
        if isinstance(step, str):
            connection.executescript(step)
    store = ResourceStore(connection)
    one = Resource(id="x", type="VariableSet", name="a", spec={}, created_at=NOW, updated_at=NOW)
    store.put(one, NOW)
    for act in acts:
        held = store.get("x")
        assert held is not None
        if act == "change":
            store.put(msgspec.structs.replace(held, generation=held.generation + 1), NOW)
        elif act == "crash":
            way = [*pending(held.status)]
            store.observe("x", held.generation, [*way, move(way[-1] if way else held.status, "Reconciling")], NOW)
        else:
            fault = Remote("away") if act == "fail" else None
            store.observe("x", held.generation, attempted(held.status, fault, held.generation), NOW)
    seen = [event.resource for event in store.events(0, 1_000)]
    phases = [each.status.phase for each in seen]
    assert all((a, b) in EDGES for a, b in itertools.pairwise(phases) if a != b)
    assert all(each.status.observed_generation <= each.generation for each in seen)


def test_r42_no_other_way_leads_from_phase_to_phase() -> None:
    assert [each.phase for each in attempted(ResourceStatus(), None)] == ["Reconciling", "Ready"]
    for phase in ("Ready", "Failed", "Pending"):
        with pytest.raises(ValueError, match="no way"):
            move(ResourceStatus(), phase)  # type: ignore[arg-type]
    cut = pending(move(ResourceStatus(), "Reconciling"))
    assert [(each.phase, each.code) for each in cut] == [("Failed", "interrupted"), ("Pending", "interrupted")]


def test_r39_an_attempt_says_which_generation_it_was_of_and_when() -> None:
    connection = sqlite3.connect(":memory:")
    for step in tables.STEPS:
        if isinstance(step, str):
            connection.executescript(step)
    store = ResourceStore(connection)
    one = Resource(id="x", type="VariableSet", name="a", spec={}, created_at=NOW, updated_at=NOW)
    store.put(one, NOW)
    assert store.observe("x", 1, attempted(one.status, None), NOW)
    store.put(msgspec.structs.replace(one, generation=2), NOW)
    held = store.get("x")
    assert held is not None
    assert (held.status.phase, held.status.observed_generation, held.status.reconciled_at) == ("Pending", 1, NOW)
    assert not store.observe("x", 1, attempted(held.status, None), NOW), "an attempt that was overtaken writes nothing"
    assert store.get("x") == held


def test_r41_conditions_have_uris_and_keep_their_times_until_they_change() -> None:
    first = attempted(ResourceStatus(), None)[-1]
    later = ready(
        move(pending(first)[-1], "Reconciling"), 2, {"Synced": ConditionValue(value=True)}, Instant(NOW + SECOND)
    )
    assert later.conditions["Synced"].updated_at == NOW
    assert later.conditions["Synced"].observed_generation == 2
    assert is_unchanged(later, {"Synced": ConditionValue(value=True)})
    assert not is_unchanged(later, {})
    said = show(later, {"Synced": "https://example.org/Synced"})
    assert said["conditions"]["https://example.org/Synced"]["value"] is True
    assert (said["phase"], said["observedGeneration"]) == ("Ready", 2)


@pytest.mark.parametrize(
    ("fault", "most"), [(Environment("disk"), MOST), (Remote("away"), MOST), (Bug("ours"), HOURLY)]
)
def test_a_pause_grows_and_is_drawn_at_random(fault: Fault, most: int) -> None:
    queue = WorkQueue(random.Random(1).randrange)
    pauses = [queue.pause(fault, failures) for failures in range(30)]
    assert all(pause is not None and LEAST <= pause <= most + LEAST for pause in pauses)
    if most == MOST:
        assert all(pauses[n] <= LEAST + (LEAST << n) for n in range(9))  # type: ignore[operator]
        assert len(set(pauses)) > 20


def test_what_is_refused_waits_for_a_change() -> None:
    queue = WorkQueue(random.Random(1).randrange)
    assert queue.pause(Invalid("wrong"), 0) is None
    assert queue.pause(Refused("no"), 3) is None


@given(
    st.lists(st.tuples(st.sampled_from(["touch", "later", "take", "done"]), st.sampled_from("abc"), st.integers(0, 9)))
)
def test_p10_attempts_on_one_id_never_overlap_and_no_touch_is_lost(acts: list[tuple[str, str, int]]) -> None:
    queue, working, owed, now = WorkQueue(random.Random(1).randrange), set(), set(), 0
    for act, each, number in acts:
        now += 1
        if act == "touch":
            queue.touch(each)
            owed.add(each)
        elif act == "later":
            queue.later(each, Instant(now + number))
            if each not in working:
                owed.add(each)
        elif act == "take":
            taken = queue.take(Instant(now), 2)
            assert not working & set(taken)
            working |= set(taken)
            owed -= set(taken)
        elif each in working:
            working.discard(each)
            queue.end(each)
    for each in sorted(working):
        queue.end(each)
    found: set[str] = set()
    while taken := queue.take(Instant(now + 100), 1):
        assert not found & set(taken)
        found |= set(taken)
    assert owed <= found
    for each in sorted(found):
        queue.end(each)
    assert queue.is_idle
    assert queue.next_time() is None

"""Which object of a bucket is next, by a listing and a position alone."""

from __future__ import annotations

import glob

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.errors import Invalid, Refused
from chain.instant import SECOND, Instant
from chain.model.source import SourceOrdering
from odfd.ingest import bucket_objects
from odfd.ingest.bucket_objects import QUIET, Keys, ObjectPosition, StoredObject, ahead, decode, in_order
from odfd.ingest.consumed_files import ConsumedFiles

NAME, TIME = SourceOrdering.BY_NAME, SourceOrdering.BY_EVENT_TIME
LATER = Instant(10**6 * SECOND)
OBJECTS = st.lists(
    st.builds(
        StoredObject,
        st.text("abé/.\U0001f600", min_size=1, max_size=6),
        st.integers(0, 3),
        st.sampled_from(["x", "y"]),
        st.integers(0, 5).map(lambda second: Instant(second * SECOND)),
    ),
    unique_by=lambda each: each.key,
    max_size=12,
)


def stored(key: str, at: int = 0, size: int = 1) -> StoredObject:
    return StoredObject(key, size, "t", Instant(at * SECOND))


@pytest.mark.slow
@given(OBJECTS, st.sampled_from(["**", "*", "a*/**", "**/b*"]), st.sampled_from([NAME, TIME]), st.data())
def test_each_object_is_taken_once_in_order_wherever_a_pull_stops(
    objects: list[StoredObject], pattern: str, order: SourceOrdering, data: st.DataObject
) -> None:
    keys, state, taken = Keys(pattern), None, []
    listing = sorted(objects, key=lambda each: each.key.encode())
    while True:
        last = None if state is None else decode(state)
        listed = [each for each in listing if last is None or order is TIME or each.key > last.key]
        found = ahead(in_order(listed), keys, last, order, LATER)
        if not found:
            break
        if data.draw(st.booleans(), "killed before the commit"):
            continue
        taken.append(found[0])
        state = ObjectPosition.of(found[0], order).encode()
    by = (lambda each: each.key) if order is NAME else (lambda each: (each.modified, each.key))
    assert taken == sorted(filter(keys.fit, objects), key=by)


@given(
    st.text("ab*?.", min_size=1, max_size=5),
    st.lists(st.text("ab.", min_size=1, max_size=4).filter(lambda name: name.strip(".")), min_size=1, max_size=6),
)
def test_patterns_are_those_of_files_but_for_hidden_ones(
    tmp_path_factory: pytest.TempPathFactory, pattern: str, names: list[str]
) -> None:
    if pattern == "**" or not pattern.strip("."):
        return
    folder = tmp_path_factory.mktemp("objects")
    for name in names:
        (folder / name).write_text("x")
    found = set(glob.glob(pattern, root_dir=folder, include_hidden=True))  # noqa: PTH207 - hidden ones too
    assert {each for each in names if Keys(pattern).fit(stored(each))} == found


@pytest.mark.parametrize(
    ("pattern", "folder", "fits", "others"),
    [
        ("daily/*.csv", "daily", ["daily/a.csv", "daily/.csv"], ["daily/a/b.csv", "daily/acsv", "x/daily/a.csv"]),
        ("d/**/*.csv", "d", ["d/a.csv", "d/x/y/a.csv"], ["d/a.json", "da.csv"]),
        ("d/**", "d", ["d/a", "d/x/y"], ["d", "e/a"]),
        ("[!a-c]?/[]x]", "", ["dd/]", "zz/x"], ["ad/x", "d/x", "d//x", "dd/y"]),
        ("a+(b).csv", "", ["a+(b).csv"], ["aab.csv"]),
        ("one/two/three.csv", "one/two", ["one/two/three.csv"], ["one/two/three.csv.gz"]),
    ],
)
def test_what_a_pattern_means(pattern: str, folder: str, fits: list[str], others: list[str]) -> None:
    keys = Keys(pattern)
    assert keys.folder == folder
    assert [each for each in [*fits, *others] if keys.fit(stored(each))] == fits
    assert not keys.fit(stored(fits[0], size=0))


def test_a_listing_without_order_or_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Refused, match="lists 'a' behind 'b'"):
        list(in_order([stored("b"), stored("a")]))
    assert [each.key for each in in_order([stored("d-x"), stored("d", size=0)])] == ["d-x"], "d/ without its slash"
    monkeypatch.setattr(bucket_objects, "MAX_LISTED", 2)
    with pytest.raises(Refused, match="more than 2 objects"):
        list(in_order(stored(each) for each in "abc"))


def test_the_youngest_are_left_where_times_are_the_order() -> None:
    objects, now = [stored("b", 90), stored("a", 100)], Instant(100 * SECOND)
    assert [each.key for each in ahead(objects, Keys("*"), None, TIME, now)] == ["b"]
    assert [each.key for each in ahead(objects, Keys("*"), None, TIME, Instant(now + QUIET))] == ["b", "a"]
    assert [each.key for each in ahead(objects, Keys("*"), None, NAME, now)] == ["b", "a"]


@pytest.mark.parametrize("value", ["", "a.csv", "{}", '{"key":"a","tag":"","modified":"x","order":"ByName"}'])
def test_a_state_of_others_is_no_position(value: str) -> None:
    with pytest.raises(Invalid, match="no object of a bucket"):
        decode(value)


def test_what_came_too_late_is_told() -> None:
    taken = ConsumedFiles()
    taken.add("b", Instant(10 * SECOND), "one")
    taken.add("d", Instant(20 * SECOND), "one")
    seconds = {"a": 5, "b": 5, "c": 15, "d": 5}
    told = taken.late([(key, "two" if key == "d" else "one", Instant(at * SECOND)) for key, at in seconds.items()])
    assert [(each.name, each.reason.partition(";")[0]) for each in told] == [
        ("c", "it came at 1970-01-01T00:00:15Z, when the source had got beyond it"),
        ("d", "it changed at 1970-01-01T00:00:05Z, after it was taken"),
    ]
    assert ConsumedFiles().late([("a", "one", LATER)]) == ()

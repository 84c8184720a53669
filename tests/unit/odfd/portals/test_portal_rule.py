"""The rule of a portal over random blocks: no block and no difference of two versions tells of a small group."""

from __future__ import annotations

import itertools
from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.errors import Invalid, Refused
from chain.ids import DatasetId
from chain.model.portal import KAnonymity, PortalRule, Suppression, described, portal_rule, with_portal_rule
from chain.model.schema import DataSchema
from odfd.portals.rule import Earlier, breaches, check_columns, filter_rows
from odfd.services.portals import publication

K = 3
ALIKE = PortalRule(input="f1620", k_anonymity=KAnonymity(k=K, quasi_identifiers=("town", "age")))
COUNTS = PortalRule(input="f1620", suppress=(Suppression(count="n", below=K, groups=("town",)),))
_PEOPLE = st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.sampled_from([1, 2])), max_size=12)
_COUNTS = st.lists(st.tuples(st.sampled_from([*"abcdefgh", None]), st.sampled_from([None, 1, 2, 3, 9])), max_size=6)


def table(names: tuple[str, str], rows: list[tuple[object, object]]) -> pa.Table:
    kinds = {"town": pa.string(), "age": pa.int32(), "n": pa.int64()}
    columns = list(zip(*rows, strict=True)) or [(), ()]
    return pa.table({name: pa.array(values, kinds[name]) for name, values in zip(names, columns, strict=True)})


@pytest.mark.slow
@given(st.lists(_PEOPLE, max_size=5))
def test_between_any_two_versions_there_are_k_of_each_group(blocks: list[list[tuple[object, object]]]) -> None:
    published = []
    for rows in blocks:
        found = list(breaches(ALIKE, table(("town", "age"), rows), Earlier(ALIKE)))
        assert bool(found) == any(count < K for count in Counter(rows).values())
        if not found:
            published.append(Counter(rows))
    for start, stop in itertools.combinations(range(len(published) + 1), 2):
        between: Counter[tuple[object, object]] = sum(published[start:stop], Counter())
        assert all(count >= K for count in between.values())


@pytest.mark.slow
@given(st.lists(_COUNTS, max_size=5))
def test_a_group_has_one_count_and_no_small_one(blocks: list[list[tuple[object, object]]]) -> None:
    """Whatever was published before is compared, in one part or in many."""
    seen: set[object] = set()
    for at, rows in enumerate(blocks):
        left = filter_rows(COUNTS, table(("town", "n"), rows))
        wanted = [row for row in rows if row[1] is not None and row[1] >= K]  # type: ignore[operator]
        assert list(zip(left["town"].to_pylist(), left["n"].to_pylist(), strict=True)) == wanted
        earlier = Earlier(COUNTS)
        parts = [[town] for town in seen] if at % 2 else [list(seen)]
        for part in parts:
            earlier.add(table(("town", "n"), [(town, 9) for town in part]))
        towns = [town for town, _ in wanted]
        repeats = [town for town, count in Counter(towns).items() if count > 1 or town in seen]
        found = [each.rule for each in breaches(COUNTS, left, earlier)]
        assert found == (["portal-difference"] if repeats else [])
        if not repeats:
            seen |= set(towns)


def test_columns_that_cannot_be_compared_are_refused() -> None:
    schema = pa.schema([("town", pa.list_(pa.string())), ("n", pa.float64()), ("age", pa.int8())])
    for rule, why in ((ALIKE, "has parts"), (COUNTS, "has parts")):
        with pytest.raises(Refused, match=why):
            check_columns(rule, schema)
    with pytest.raises(Refused, match="counts nothing"):
        check_columns(COUNTS, schema.set(0, pa.field("town", pa.string())))


def test_the_rule_stands_in_the_schema_and_is_told() -> None:
    whole = PortalRule(input="f1620", k_anonymity=ALIKE.k_anonymity, suppress=COUNTS.suppress)
    assert portal_rule(with_portal_rule(DataSchema(fields=()), whole)) == whole
    assert described(whole) == "k = 3 in town, age; n at least 3, once for each town"
    assert portal_rule(DataSchema(fields=())) is None
    with pytest.raises(Invalid, match="cannot be read"):
        portal_rule(DataSchema(fields=(), extra={"w3id.org/odfd/portal": {"epsilon": 1}}))


def test_an_opening_is_read_under_limits() -> None:
    portal, private = (DatasetId.from_public_key(bytes([at]) * 32) for at in (1, 2))
    text = publication.opening_text(portal, private, b"s" * 32)
    assert publication.read_opening(text, portal) == (private, b"s" * 32)
    for wrong in (b"", b"{}", text + b" " * 5000, text.replace(b"73", b"7", 1), text.replace(b"/v1", b"/v2")):
        with pytest.raises(Invalid, match="the opening"):
            publication.read_opening(wrong, portal)
    with pytest.raises(Invalid, match="another portal"):
        publication.read_opening(text, private)
    assert publication.input_hash(b"s" * 32, private) != publication.input_hash(b"t" * 32, private)

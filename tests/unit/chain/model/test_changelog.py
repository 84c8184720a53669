"""An attribute of a schema that comes from strangers: said, unsaid, or nonsense."""

from __future__ import annotations

import pytest

from chain.data.arrow_schema import from_arrow, to_arrow
from chain.model.changelog import CHANGELOG, says_changelog, with_changelog
from chain.model.schema import DataField, DataSchema, Int64

SCHEMA = DataSchema(fields=(DataField(name="v", type=Int64()),), extra={"example.org/note": "kept"})


@pytest.mark.parametrize("changelog", [True, False, None])
def test_what_is_said_is_read_and_the_rest_is_kept(changelog):
    said = with_changelog(SCHEMA, changelog)
    assert says_changelog(said) is changelog
    assert says_changelog(from_arrow(to_arrow(said))) is changelog
    assert with_changelog(said, None) == SCHEMA


@pytest.mark.parametrize("value", ["true", 1, None, {"kind": "yes"}])
def test_nonsense_says_nothing(value):
    assert says_changelog(DataSchema(fields=SCHEMA.fields, extra={CHANGELOG: value})) is None


def test_no_schema_and_no_attributes():
    assert says_changelog(None) is None
    bare = DataSchema(fields=SCHEMA.fields)
    assert with_changelog(bare, None) == bare

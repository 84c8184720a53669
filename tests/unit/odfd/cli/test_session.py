"""What a session prints as JSON."""

from __future__ import annotations

import json
import sys
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from odfd.cli.session import indent

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS | st.just("\ud800"), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=12
)


@pytest.mark.slow
@given(VALUES)
@example({"a": [], "b": {}, "c": [{"d": 1e-07, "e": '\u2028"\\'}]})
def test_json_of_several_lines_is_that_of_the_standard_library(value: Any) -> None:
    assert msgspec.json
    expected = json.dumps(value, indent=2, ensure_ascii=False)
    assert indent(value) == expected
    with patch.dict(sys.modules):
        sys.modules.pop("msgspec", None)
        assert indent(value) == expected

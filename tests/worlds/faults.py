"""Faults by the rule that was broken."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from chain.errors import Fault


@contextmanager
def breaks(rule: str, kind: type[Any] = Fault, match: str | None = None) -> Iterator[pytest.ExceptionInfo[Any]]:
    """What is done within raises a fault of this kind, with this rule."""
    with pytest.raises(kind, match=match) as told:
        yield told
    assert told.value.rule == rule

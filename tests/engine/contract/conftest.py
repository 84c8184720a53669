"""The whole way: coordinator, client, sandbox, service, Spark."""

from __future__ import annotations

from typing import Any

import pytest

from worlds import transform_world


@pytest.fixture(scope="session")
def worlds() -> Any:
    return transform_world

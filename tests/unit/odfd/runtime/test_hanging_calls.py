"""Blocking functions that are awaited."""

from __future__ import annotations

import threading

import pytest

from odfd.runtime.hanging_calls import in_worker


class Shop:
    """Has one operation that blocks."""

    @in_worker
    def open(self, name: str, *, times: int = 1) -> tuple[str, int]:
        """Says where it runs."""
        if not times:
            raise ValueError(name)
        return name * times, threading.get_ident()


async def test_a_blocking_operation_is_awaited_and_runs_beside_the_event_loop() -> None:
    name, thread = await Shop().open("a", times=3)
    assert name == "aaa"
    assert thread != threading.get_ident()
    with pytest.raises(ValueError, match="a"):
        await Shop().open("a", times=0)


async def test_it_keeps_its_name_its_text_and_its_types_for_what_reads_them() -> None:
    assert (Shop.open.__qualname__, Shop.open.__doc__) == ("Shop.open", "Says where it runs.")
    assert Shop.open.__annotations__["return"] == "tuple[str, int]"

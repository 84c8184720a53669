"""Gives datasets as they are held, for as long as a program reads them."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Any, Self

from odfd_client.datasets import Dataset
from odfd_client.errors import Bug, Invalid, OdfdError
from odfd_client.leases import Lease, When
from odfd_client.relations import Selection
from odfd_client.transport import Transport


class Hold(Lease):
    """A hold of a dataset's history, until it is released or its block ends. ``dataset`` reads the held rows."""

    @property
    def dataset(self) -> Dataset:
        """The dataset as it is held. Raises HoldLost."""
        self.check()
        name = self.pin.id if len(self.pins) == 1 else self.pin.name
        return Dataset(self._transport, Selection(name), self.pins)


class HeldTogether:
    """Holds of several datasets at one time: ``held["a"]`` is the dataset as of it. Leaving the block ends them."""

    def __init__(self, holds: Mapping[str, Hold]) -> None:
        self._holds, self._open = dict(holds), ExitStack()

    @property
    def time(self) -> str:
        """The common time; if every dataset is sealed, that of the newest block."""
        return max(hold.time for hold in self._holds.values())

    def __getitem__(self, ref: str) -> Dataset:
        """Returns a held dataset. Raises HoldLost, and KeyError for another dataset."""
        return self._holds[ref].dataset

    def __enter__(self) -> Self:
        with ExitStack() as opened:
            for hold in self._holds.values():
                opened.enter_context(hold)
            self._open = opened.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.__exit__(kind, error, trace)


def take_together(transport: Transport, refs: Sequence[str], at: When, seconds: int, note: str) -> HeldTogether:
    """Takes holds of several datasets. ``at``: ``None`` is the greatest time that is complete in all.

    Raises as ``Hold.take`` does, and then holds none.
    """
    if len(set(refs)) != len(refs) or not refs:
        raise Invalid("name each dataset once, and one at least", rule="dataset", hint='c.at(None, "a", "b")')
    if at is None:
        at = _complete([transport.dataset(ref) for ref in refs])
    holds: dict[str, Hold] = {}
    try:
        for ref in refs:
            holds[ref] = Hold.take(transport, ref, at, seconds, note)
    except OdfdError:
        for hold in holds.values():
            with suppress(OdfdError):
                hold.release()
        raise
    return HeldTogether(holds)


def _complete(described: Sequence[Any]) -> str | None:
    """Returns the last millisecond before the least upper; ``None``: all datasets are sealed, so there is none."""
    try:
        uppers = [each["frontiers"]["upper"] for each in described]
        times = [datetime.datetime.fromisoformat(upper) for upper in uppers if upper is not None]
    except (KeyError, TypeError, ValueError) as error:
        raise Bug("the node's frontiers are not understood", rule="answer") from error
    if not times:
        return None
    last = min(times) - datetime.timedelta(milliseconds=1)
    return last.astimezone(datetime.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

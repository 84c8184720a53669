"""Delivers the current rows of a dataset, and then every change to it, each once."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import nullcontext
from dataclasses import dataclass, replace

from odfd_client.holds import SECONDS, take
from odfd_client.relations import Dataset, Demand, Selection
from odfd_client.subscription import Update
from odfd_client.transport import Transport
from odfd_client.values import Pin, Position


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The current rows at a position; the updates after it are the changes to them."""

    rows: Dataset
    """Read them before the next update: until then the history is held."""
    position: Position


def subscribe(
    transport: Transport, selection: Selection, demand: Demand, *, follow: bool, seconds: float
) -> Generator[Snapshot | Update, None, None]:
    """Implements ``Dataset.subscribe`` without a position.

    A node at a URL gives no holds: a history that is rewritten while its snapshot is read is an error.
    """
    plain = Dataset(transport, selection, (), demand)
    note = "the snapshot of a subscription"
    held = nullcontext() if transport.is_remote else take(transport, selection.name, None, SECONDS, note)
    with held as hold:
        pins = () if hold is None else hold.pins
        log = Dataset(transport, Selection(selection.name), pins, demand)
        position = Position.of([_position(each.last_offset(), each.pin) for each in log.chains()])
        yield Snapshot(Dataset(transport, replace(selection, current=True), log.pins, demand), position)
    yield from plain.listen(position, follow=follow, seconds=seconds)


def _position(offset: int, pin: Pin) -> Position:
    return Position(pin.id, offset, pin.block, pin.sequence_number)

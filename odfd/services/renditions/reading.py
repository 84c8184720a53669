"""Says what a reader of a former rendition reads at its end: the exact difference to the rendition that followed.

``odfd.renditions.reader_position`` decides; this module turns its times into cuts of two chains. Spec:
docs/spec/collections.md#renditions.
"""

from __future__ import annotations

from typing import Final

import msgspec

from chain import instant
from chain.codec.arrow_schema import schema_of
from chain.data.arrow_schema import to_arrow
from chain.errors import NotFound, Refused
from chain.ids import DatasetId
from chain.instant import from_millis
from chain.model.events import AddData
from chain.state import load_state
from chain.store.base import Head
from odfd.control import wire
from odfd.datasets.local_data import need_data
from odfd.queries.sharded_cuts import pin_at
from odfd.renditions.reader_position import ContentDifference, Updates, next_reading
from odfd.renditions.timeline import Timeline, advance
from odfd.store.collections import CollectionState, Member
from odfd.store.directory import StateDirectory

EXTRA: Final = "odfd/difference"
"""The attribute of the block of a difference, which states the cuts that it is of."""


def reading_at_the_end(home: StateDirectory, state: CollectionState, number: int) -> wire.HandoverReading:
    """Describes the difference to read at the last handover from a rendition.

    Raises NotFound if the rendition is active or never was, or if its data is gone.
    """
    member = state.member(number)
    times = [switch.time for switch in state.timeline.switches if switch.to.number == number]
    if not times or state.active.row.number == number:
        raise NotFound(
            f"rendition {number} has no handover to another one",
            rule="rendition-active",
            hint="odfctl get renditions shows which is active",
        )
    uppers = _uppers(home, state)
    # A handover is never before the frontier of the active rendition, so the timeline is known up to that.
    timeline = advance(state.timeline, uppers[state.active.row.number])
    found = _difference(timeline, uppers, times[-1])
    if found is None:
        raise NotFound(
            f"rendition {number} is not complete to its handover", rule="rendition-upper", hint="ask again soon"
        )
    new = state.member(found.new)
    for each in (member, new):
        for shard in each.shards:
            need_data(home, shard, home.name_of(shard), whole=True)
    old_pins, new_pins = _pins(home, member, found.old_time), _pins(home, new, found.time)
    reading = wire.HandoverReading(
        time=instant.render(from_millis(found.time)),
        old=old_pins[0],
        new=new_pins[0],
        old_shards=old_pins if len(old_pins) > 1 else (),
        new_shards=new_pins if len(new_pins) > 1 else (),
        equal=state.content_of(number) == state.content_of(found.new) and _ends_before(home, member, found),
        columns=columns_of(home, member, new),
        offsets=tuple(_last_offset(home, pin) for pin in new_pins),
    )
    return msgspec.structs.replace(reading, difference=_difference_pin(home, state, reading, found.time))


def _uppers(home: StateDirectory, state: CollectionState) -> dict[int, int]:
    """Returns the frontiers by rendition number, in milliseconds.

    A mirror that followed a handover has all of the next rendition up to the time of that handover.
    """
    uppers = {
        member.row.number: min(map(home.chains.upper, member.shards)) for member in state.members if not member.dropped
    }
    for switch in state.timeline.switches[1:]:
        number = switch.to.number
        if number in uppers and not home.keys.has_dataset_key(state.member(number).dataset):
            uppers[number] = max(uppers[number], switch.time + 1)
    return uppers


def _difference(timeline: Timeline, uppers: dict[int, int], after: int) -> ContentDifference | None:
    """Returns the first difference that a reader meets; ``None`` if the reader has to wait before it."""
    while isinstance(reading := next_reading(after, timeline, uppers), Updates):
        after = reading.until - 1
    return reading if isinstance(reading, ContentDifference) else None


def cuts_of(reading: wire.HandoverReading) -> dict[str, object]:
    """Returns the hashes of the last blocks of both cuts, as the block of a difference states them."""
    sides = {"old": reading.old_shards or (reading.old,), "new": reading.new_shards or (reading.new,)}
    return {side: [pin.block for pin in pins] for side, pins in sides.items()}


def _difference_pin(
    home: StateDirectory, state: CollectionState, reading: wire.HandoverReading, time: int
) -> wire.Pin | None:
    """Returns the difference that was computed for a handover and checked; ``None`` if there is none.

    Raises Refused if its block states other cuts.
    """
    kept = next((each for each in state.differences if each.time == time and each.is_checked), None)
    if kept is None:
        return None
    head = pinned_head(home, kept.dataset, reading)
    name, id_ = home.name_of(kept.dataset), str(kept.dataset)
    return wire.Pin(name=name, id=id_, block=str(head.hash), sequence_number=head.sequence_number)


def pinned_head(home: StateDirectory, difference: DatasetId, reading: wire.HandoverReading) -> Head:
    """Returns the head of a difference. Raises Refused unless its last block states the cuts of this reading."""
    chain = home.chains.chain(difference)
    head = chain.head()
    event = None if head is None else chain.block_at(head.sequence_number).event
    extra = event.extra if isinstance(event, AddData) else None
    if head is None or (extra or {}).get(EXTRA) != cuts_of(reading):
        name = home.name_of(difference)
        raise Refused(
            f"{name} is not the difference of the cuts of this handover",
            rule="rendition-difference",
            hint=f"odfctl rendition abandon {name} 0: readers compare all rows then",
        )
    return head


def _ends_before(home: StateDirectory, member: Member, found: ContentDifference) -> bool:
    """Whether a rendition got no rows at the very time of its handover, which are read in the next one alone."""
    return all(
        _last_offset(home, before) == _last_offset(home, then)
        for before, then in zip(_pins(home, member, found.old_time), _pins(home, member, found.time), strict=True)
    )


def _last_offset(home: StateDirectory, pin: wire.Pin) -> int:
    found = load_state(home.chains.chain(DatasetId.parse(pin.id)), pin.sequence_number + 1).last_offset
    return -1 if found is None else found


def _pins(home: StateDirectory, member: Member, time: int) -> tuple[wire.Pin, ...]:
    """Returns pins of all blocks of a rendition up to a time, one for each of its shards."""
    name = home.name_of(member.dataset)
    return tuple(pin_at(home, name, shard, time) for shard in member.shards)


def columns_of(home: StateDirectory, old: Member, new: Member) -> tuple[str, ...] | None:
    """Returns the columns of both renditions, without system columns; ``None`` if they differ."""
    schemas = []
    for each in (old, new):
        state = load_state(home.chains.chain(each.dataset))
        system = {state.vocab.offset, state.vocab.operation_type, state.vocab.system_time}
        fields = [] if state.schema is None else list(to_arrow(schema_of(state.schema)))
        schemas.append([(field.name, field.type) for field in fields if field.name not in system])
    return tuple(name for name, _ in schemas[0]) if schemas[0] == schemas[1] else None

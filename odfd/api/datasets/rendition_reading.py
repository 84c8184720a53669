"""Says what a reader of a former rendition reads at its end: the exact difference to the one that followed it.

The decision is ``odfd.renditions.following``'s; here its times become cuts of two chains.
Spec: docs/spec/collections.md#renditions.
"""

from __future__ import annotations

from chain import instant
from chain.codec.arrow_schema import schema_of
from chain.data.arrow_schema import to_arrow
from chain.errors import NotFound, Refused
from chain.instant import from_millis
from chain.state import load_state
from chain.store.shards import Shard, View
from odfd.control import wire
from odfd.renditions.following import Difference, Updates, next_reading
from odfd.renditions.tables import CollectionState, Member
from odfd.renditions.timeline import Timeline, advanced
from odfd.state.directory import StateDirectory


def reading_at_the_end(home: StateDirectory, state: CollectionState, number: int) -> wire.HandoverReading:
    """The last handover from a rendition. Raises NotFound: it is the active one, or never was; its data is gone."""
    member = state.member(number)
    times = [each.time for each in state.timeline.switches if each.to.number == number]
    if not times or state.active.row.number == number:
        raise NotFound(
            f"rendition {number} has no handover to another one",
            rule="rendition-active",
            hint="odfctl get renditions shows which is active",
        )
    uppers = _uppers(home, state)
    # No handover is ever before the frontier of the active rendition: M promises that much without being written.
    timeline = advanced(state.timeline, uppers[state.active.row.number])
    found = _difference(timeline, uppers, times[-1])
    if found is None:
        raise NotFound(
            f"rendition {number} is not complete to its handover", rule="rendition-upper", hint="ask again soon"
        )
    new = state.member(found.new)
    if max(len(member.shards), len(new.shards)) > 1:
        raise Refused(
            f"rendition {number} handed over to or from several shards, and a listener follows one chain",
            rule="shard-listen",
            hint="begin anew with what the collection contains: odfctl sql",
        )
    for each in (member, new):
        home.need_data(each.dataset, home.name_of(each.dataset), whole=True)
    return wire.HandoverReading(
        time=instant.render(from_millis(found.time)),
        old=_pin(home, member, found.old_time),
        new=_pin(home, new, found.time),
        equal=state.content_of(number) == state.content_of(found.new),
        columns=_columns(home, member, new),
    )


def _uppers(home: StateDirectory, state: CollectionState) -> dict[int, int]:
    """Frontiers by number. A mirror that followed a handover has all of the next rendition at its time."""
    uppers = {each.row.number: min(map(home.chains.upper, each.shards)) for each in state.members if not each.dropped}
    for switch in state.timeline.switches[1:]:
        number = switch.to.number
        if number in uppers and not home.keys.has_dataset_key(state.member(number).dataset):
            uppers[number] = max(uppers[number], switch.time + 1)
    return uppers


def _difference(timeline: Timeline, uppers: dict[int, int], after: int) -> Difference | None:
    """The first one that a reader meets; ``None``: it waits before."""
    while isinstance(reading := next_reading(after, timeline, uppers), Updates):
        after = reading.until - 1
    return reading if isinstance(reading, Difference) else None


def _pin(home: StateDirectory, member: Member, time: int) -> wire.Pin:
    """All blocks of a rendition up to a time."""
    chain = home.chains.chain(member.dataset)
    size = View(Shard(chain.head(), 0), chain.block_at).size_at(time)
    last = chain.block_at(max(0, size - 1))
    name = home.name_of(member.dataset)
    return wire.Pin(name=name, id=str(member.dataset), block=str(last.hash), sequence_number=last.sequence_number)


def _columns(home: StateDirectory, old: Member, new: Member) -> tuple[str, ...] | None:
    """Columns of what rows say, where both have the same."""
    schemas = []
    for each in (old, new):
        state = load_state(home.chains.chain(each.dataset))
        system = {state.vocab.offset, state.vocab.operation_type, state.vocab.system_time}
        fields = [] if state.schema is None else list(to_arrow(schema_of(state.schema)))
        schemas.append([(field.name, field.type) for field in fields if field.name not in system])
    return tuple(name for name, _ in schemas[0]) if schemas[0] == schemas[1] else None

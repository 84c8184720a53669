"""Fills the time that a fetch is for into a source, and keeps what the source said of its version apart by that time.

The time of a flow's run is the nominal one: that of its schedule, whenever the run takes place, so that a past day can
be asked for. What is fetched for one time says nothing of another: an ETag of yesterday's document is not sent for
today's. A fetch that is repeated for the same time, as after a crash, knows what it had.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, TypeVar

import msgspec

from chain.errors import Invalid, Refused
from chain.instant import DAY, SECOND, Instant, date_of, parse, render
from chain.model.events import SetPollingSource, SourceState
from chain.model.fetch_options import fetch_options
from chain.model.source import FetchStep, ReadStep
from odfd.ingest.fetch.dispatch import fetch, source_of
from odfd.ingest.fetch.source import DEFAULT_SOURCE, FetchJob, FetchOutcome, Unchanged

TIME: Final = "trigger.time"
DATE: Final = "trigger.date"
STATE: Final = "w3id.org/odfd/trigger-time"
"""Kind of a source state: the time, and what the source said of what it gave for it."""
RULE: Final = "source-variable"
_TRIGGER: Final = re.compile(r"\$\{\{\s*(trigger\.\w*)\s*\}\}")
_OFFSET: Final = re.compile(r"([+-])(\d\d):(\d\d)\Z")
_T = TypeVar("_T")


class TriggerTime(msgspec.Struct, frozen=True):
    """The time that a fetch is for."""

    time: Instant
    """In whole seconds."""
    offset: int = 0
    """Seconds by which its day is ahead of that in UTC."""
    is_wished: bool = False
    """Whether a person named it, who is told where no source asks for it."""

    @classmethod
    def of(cls, now: Instant) -> TriggerTime:
        """Returns the time of a pull by hand."""
        return cls(Instant(now // SECOND * SECOND))

    @classmethod
    def read(cls, text: str, *, is_wished: bool = False) -> TriggerTime:
        """Reads RFC 3339; its day is that at the offset which it is written with. Raises Invalid."""
        time, found = parse(text), _OFFSET.search(text)
        minutes = int(found[1] + "1") * (int(found[2]) * 60 + int(found[3])) if found else 0
        return cls(Instant(time // SECOND * SECOND), minutes * 60, is_wished)

    @property
    def values(self) -> dict[str, str]:
        """The texts in place of the variables, by their names."""
        year, month, day = date_of((self.time // SECOND + self.offset) // DAY)
        return {TIME: render(self.time), DATE: f"{year:04d}-{month:02d}-{day:02d}"}


SPECIMEN: Final = TriggerTime(Instant(0))
"""In place of times to come, where a source is checked."""


def asks_time(step: FetchStep, read: ReadStep) -> bool:
    """Whether a source names the time that a fetch is for."""
    return any(map(_TRIGGER.search, _texts((step, fetch_options(read.schema)))))


def check_trigger(step: FetchStep, read: ReadStep) -> None:
    """Raises Invalid for an unknown variable of the trigger, and for one in a source that goes on where it ended."""
    options = fetch_options(read.schema)
    at_time((step, options), SPECIMEN)
    if not asks_time(step, read) or source_of(step, options).is_asked_anew:
        return
    raise Invalid(
        "this kind of source continues where the last pull ended, whatever the time that is asked for",
        rule=RULE,
        hint=f"leave out ${{{{ {TIME} }}}}; a Url, Http, Sql without a cursor or Container can have it",
    )


def at_time(value: _T, trigger: TriggerTime) -> _T:
    """Returns a value with the time in all its texts. Raises Invalid for a variable that no trigger has."""
    return _fill(value, trigger.values)  # type: ignore[no-any-return]


def _fill(value: Any, values: dict[str, str]) -> Any:
    match value:
        case str():
            return _TRIGGER.sub(lambda found: _value(found[1], values), value)
        case tuple() | list():
            return type(value)(_fill(each, values) for each in value)
        case dict():
            return {key: _fill(each, values) for key, each in value.items()}
        case msgspec.Struct():
            parts = {name: _fill(getattr(value, name), values) for name in value.__struct_fields__}
            return msgspec.structs.replace(value, **parts)
        case _:
            return value


def _value(name: str, values: dict[str, str]) -> str:
    if name not in values:
        hint = f"known are ${{{{ {TIME} }}}} and ${{{{ {DATE} }}}}"
        raise Invalid(f"unknown variable {name[:60]!r}", rule=RULE, hint=hint)
    return values[name]


def _texts(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case tuple() | list():
            for each in value:
                yield from _texts(each)
        case dict():
            yield from _texts([*value.values()])
        case msgspec.Struct():
            for name in value.__struct_fields__:
                yield from _texts(getattr(value, name))


def _state_for(state: SourceState | None, trigger: TriggerTime) -> SourceState | None:
    """Returns what the source said of what it gave for this time; ``None``: nothing, or it was not asked."""
    if state is None or state.kind != STATE:
        return None
    time, _, rest = state.value.partition(" ")
    kind, _, value = rest.partition(" ")
    if time != render(trigger.time) or not kind:
        return None
    return SourceState(source_name=state.source_name, kind=kind, value=value)


def check_wish(polled: SetPollingSource, trigger: TriggerTime | None) -> None:
    """Raises Refused for a time that a person named, where the source asks for none."""
    if trigger is None or not trigger.is_wished or asks_time(polled.fetch, polled.read):
        return
    raise Refused(
        "the source does not ask for a time, so it cannot be pulled for one",
        rule="pull-time",
        hint=f"leave out --time, or write ${{{{ {TIME} }}}} in its URL, query or environment (odfctl docs sources)",
    )


def is_uncacheable(polled: SetPollingSource, seen: SourceState | None, trigger: TriggerTime | None) -> bool:
    """Whether a source that was read cannot tell if it changed: for this time, where it asks for one."""
    if trigger is None or not asks_time(polled.fetch, polled.read):
        return seen is None
    return seen is not None and seen.kind == STATE and seen.value == render(trigger.time)


async def fetch_for(polled: SetPollingSource, job: FetchJob, trigger: TriggerTime | None) -> FetchOutcome:
    """Fetches what a source has for a time. Raises what its fetcher does."""
    step, options = polled.fetch, job.options
    if trigger is None or not asks_time(step, polled.read):
        return await fetch(step, job)
    asked = msgspec.structs.replace(
        job, state=_state_for(job.state, trigger), options=None if options is None else at_time(options, trigger)
    )
    return _with_time(await fetch(at_time(step, trigger), asked), trigger)


def _with_time(found: FetchOutcome, trigger: TriggerTime) -> FetchOutcome:
    """Returns what was fetched with the time in the state that the chain will have."""
    if isinstance(found, Unchanged):
        return found
    said, time = found.state, render(trigger.time)
    name = DEFAULT_SOURCE if said is None else said.source_name
    value = time if said is None else f"{time} {said.kind} {said.value}"
    return msgspec.structs.replace(found, state=SourceState(source_name=name, kind=STATE, value=value))

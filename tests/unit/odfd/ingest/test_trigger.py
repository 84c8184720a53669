"""The time that a fetch is for stands in its source; what a source said for one time says nothing of another."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.errors import Invalid, Refused
from chain.instant import SECOND, Instant, parse, render
from chain.model.events import DatasetKind, SetPollingSource, SourceState
from chain.model.fetch_options import SqlQuery
from chain.model.source import (
    EnvVar,
    FetchContainer,
    FetchFilesGlob,
    FetchStep,
    FetchUrl,
    MergeAppend,
    ReadNdJson,
    RequestHeader,
)
from chain.state import ChainState
from odfd.flows.schedule import Cron, Every, offset_at
from odfd.ingest.fetch.source import DEFAULT_SOURCE, ETAG, Fetched, Unchanged
from odfd.ingest.refetch import refetch
from odfd.ingest.trigger import STATE, TriggerTime, _state_for, _with_time, at_time, check_trigger, is_uncacheable

DAY = TriggerTime.read("2024-05-01T00:00:00+02:00")
NEXT = TriggerTime.read("2024-05-02T00:00:00+02:00")
ASKED = "https://example.org/${{ trigger.date }}?to=${{trigger.time}}"


def source(step: FetchStep) -> SetPollingSource:
    return SetPollingSource(fetch=step, read=ReadNdJson(), merge=MergeAppend())


def fetched(state: SourceState | None) -> Fetched:
    return Fetched(path=Path("a"), name="a", identity="a", state=state)


def test_the_time_stands_in_all_texts() -> None:
    url = at_time(FetchUrl(url=ASKED, headers=(RequestHeader(name="From", value="${{ trigger.time }}"),)), DAY)
    assert url.url == "https://example.org/2024-05-01?to=2024-04-30T22:00:00Z"
    assert url.headers is not None
    assert url.headers[0].value == "2024-04-30T22:00:00Z"
    step = FetchContainer(
        image="x", args=("${{ trigger.date }}",), env=(EnvVar(name="DAY", value="${{ trigger.date }}"),)
    )
    assert at_time(step, DAY).args == ("2024-05-01",)
    assert at_time(step, DAY).env == (EnvVar(name="DAY", value="2024-05-01"),)
    assert at_time(SqlQuery(query="select '${{ trigger.time }}'"), DAY).query == "select '2024-04-30T22:00:00Z'"
    assert at_time(FetchUrl(url="https://${{ env.HOST }}/"), DAY).url == "https://${{ env.HOST }}/"


def test_a_variable_that_no_trigger_has_is_refused() -> None:
    with pytest.raises(Invalid, match=r"unknown variable 'trigger.day'") as caught:
        check_trigger(FetchUrl(url="https://x/${{ trigger.day }}"), ReadNdJson())
    assert "trigger.date" in caught.value.hint


def test_sources_that_go_on_where_they_ended_have_no_time() -> None:
    check_trigger(FetchUrl(url=ASKED), ReadNdJson())
    check_trigger(FetchFilesGlob(path="/data/*.csv"), ReadNdJson())
    with pytest.raises(Invalid, match="goes on where the last pull ended"):
        check_trigger(FetchFilesGlob(path="/data/${{ trigger.date }}/*.csv"), ReadNdJson())


@given(st.sampled_from([None, SourceState(source_name=DEFAULT_SOURCE, kind=ETAG, value='W/"a b"')]))
def test_what_was_said_of_one_time_is_not_asked_of_another(said: SourceState | None) -> None:
    found = _with_time(fetched(said), DAY)
    assert isinstance(found, Fetched)
    assert found.state is not None
    assert found.state.kind == STATE
    assert _state_for(found.state, DAY) == said
    assert _state_for(found.state, NEXT) is None
    assert is_uncacheable(source(FetchUrl(url=ASKED)), found.state, DAY) is (said is None), "it is not read twice"
    assert not is_uncacheable(source(FetchUrl(url=ASKED)), found.state, NEXT)
    assert _with_time(Unchanged(), DAY) == Unchanged()


def test_a_state_of_before_is_of_no_time() -> None:
    before = SourceState(source_name=DEFAULT_SOURCE, kind=ETAG, value="a")
    assert _state_for(before, DAY) is None
    assert not is_uncacheable(source(FetchUrl(url=ASKED)), None, DAY)
    assert is_uncacheable(source(FetchUrl(url="https://example.org/")), None, DAY)


def test_the_day_is_that_of_the_schedule() -> None:
    midnight = parse("2024-04-30T22:00:00Z")
    vienna = TriggerTime(midnight, offset_at(Cron("@daily", "Europe/Vienna"), midnight))
    assert vienna.values == {"trigger.time": "2024-04-30T22:00:00Z", "trigger.date": "2024-05-01"}
    for schedule in (None, Every(60 * SECOND), Cron("@daily")):
        assert TriggerTime(midnight, offset_at(schedule, midnight)).values["trigger.date"] == "2024-04-30"


@given(st.integers(-(10**18), 4 * 10**18), st.integers(-14 * 60, 14 * 60))
def test_a_written_time_is_read_with_its_day(nanoseconds: int, minutes: int) -> None:
    time = Instant(nanoseconds)
    sign, apart = "+" if minutes >= 0 else "-", divmod(abs(minutes), 60)
    local = render(Instant(time // SECOND * SECOND + minutes * 60 * SECOND)).removesuffix("Z")
    read = TriggerTime.read(f"{local}{sign}{apart[0]:02d}:{apart[1]:02d}")
    assert read == msgspec.structs.replace(TriggerTime.of(time), offset=minutes * 60)
    assert read.values["trigger.date"] == local.partition("T")[0]


async def test_validators_do_not_fetch_it_again() -> None:
    state = ChainState(kind=DatasetKind.ROOT, set_polling_source=source(FetchUrl(url=ASKED)))
    with pytest.raises(Refused, match="asked for a time"):
        await refetch(NotImplemented, NotImplemented, state, DAY.time)

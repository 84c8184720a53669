"""What a stream of server-sent events means as a source, asked of a server on loopback that keeps Last-Event-ID."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from chain import instant
from chain.errors import Invalid, Refused, Remote
from chain.model.events import SourceState
from chain.model.fetch_options import ServerEvents
from chain.model.source import FetchUrl, RequestHeader
from odfd.ingest.fetch import sse
from odfd.ingest.fetch.dispatch import fetch
from odfd.ingest.fetch.source import FetchJob, Unchanged
from odfd.ingest.fetch.sse import EventReader, ServerEvent
from odfd.ingest.settings import PATIENCE, IngestSettings
from worlds.sse import Stream, stream_served

NOW = instant.parse("2050-01-01T12:00:00Z")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stream]:
    monkeypatch.setattr(sse, "QUIET", 0.2)
    with stream_served() as made:
        yield made


class Root:
    def __init__(self, server: Stream, folder: Path, **options: Any) -> None:
        self.folder, self.options = folder, ServerEvents(**options)
        header = RequestHeader(name="Authorization", value="Bearer ${{ env.TOKEN }}")
        self.step = FetchUrl(url=f"odfd+{server.url}", headers=(header,))
        self.state: SourceState | None = None

    def fetch(self) -> Any:
        settings = IngestSettings(staging=self.folder, variables={"TOKEN": "s3cr3t-token"}, patience=PATIENCE)
        job = FetchJob(state=self.state, now=NOW, folder=self.folder, settings=settings, options=self.options)
        return trio.run(fetch, self.step, job)

    def rows(self) -> list[Any]:
        found = self.fetch()
        if isinstance(found, Unchanged):
            return []
        self.state = found.state
        return [msgspec.json.decode(line) for line in found.path.read_bytes().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("stays", [False, True])
def test_events_come_once_behind_the_last_one(server: Stream, tmp_path: Path, stays: bool) -> None:
    server.stays = stays
    server.events = [(f"n{number}", f'{{"id":\n{number}}}') for number in range(5)]
    root = Root(server, tmp_path, batch_messages=3)
    first = root.fetch()
    assert first.has_more
    assert root.rows() == [{"id": 0}, {"id": 1}, {"id": 2}]
    assert root.state == SourceState(source_name="default", kind="w3id.org/odfd/sse", value="n2")
    assert root.rows() == [{"id": 3}, {"id": 4}]
    assert root.rows() == []
    server.events.append(("n5", '{"id": 5}'))
    assert root.rows() == [{"id": 5}]
    assert "Last-Event-ID" not in server.asked[0]
    assert (server.asked[-1]["Last-Event-ID"], server.asked[-1]["Authorization"]) == ("n4", "Bearer s3cr3t-token")


def test_events_can_be_rows_themselves(server: Stream, tmp_path: Path) -> None:
    server.events = [("1", "a\nb")]
    assert Root(server, tmp_path, envelope=True).rows() == [{"sse_id": "1", "sse_event": "change", "sse_data": "a\nb"}]


def test_a_server_that_forgets_the_position_is_refused(server: Stream, tmp_path: Path) -> None:
    server.events, server.forgets = [("1", "{}"), ("2", "{}")], True
    root = Root(server, tmp_path)
    assert len(root.rows()) == 2
    server.events.append(("3", "{}"))
    with pytest.raises(Refused) as caught:
        root.rows()
    assert caught.value.rule == "sse-position"
    server.events = [("1", "{}"), ("1", "{}")]
    with pytest.raises(Refused, match="are no position"):
        Root(server, tmp_path).rows()


def test_ids_that_no_header_or_chain_may_hold_are_refused(server: Stream, tmp_path: Path) -> None:
    for name in ("", "a\tb", "x" * 5000):
        server.events = [(name, "{}")]
        with pytest.raises(Invalid, match="no id of its own"):
            Root(server, tmp_path).rows()
    server.events = [("s3cr3t-token", "{}")]
    with pytest.raises(Refused, match="holds the value of a variable"):
        Root(server, tmp_path).rows()


@pytest.mark.slow
def test_a_stream_that_never_ends_is_left(server: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "LONGEST", 0.3)
    server.events, server.pings = [("1", "{}")], True
    root = Root(server, tmp_path)
    assert root.rows() == [{}]
    assert root.rows() == []
    monkeypatch.setattr(sse, "MAX_EVENT", 3)
    with pytest.raises(Refused, match="more than 3 characters"):
        root.rows()


def test_what_is_no_stream_is_told(server: Stream, tmp_path: Path) -> None:
    server.kind = "text/html"
    with pytest.raises(Invalid, match="no stream of events"):
        Root(server, tmp_path).rows()
    server.status = 500
    with pytest.raises(Remote, match="answers 500"):
        Root(server, tmp_path).rows()
    server.status = 204
    assert Root(server, tmp_path).rows() == []


NAMES = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=5)
DATA = st.text(st.characters(blacklist_characters="\r\n", blacklist_categories=("Cs",)), max_size=8)


@pytest.mark.slow
@given(
    st.lists(st.tuples(NAMES, DATA, st.sampled_from(["\n", "\r\n", "\r"]), st.booleans()), max_size=5),
    st.lists(st.integers(0, 200), max_size=8),
)
def test_events_do_not_depend_on_how_the_stream_is_cut(
    events: list[tuple[str, str, str, bool]], cuts: list[int]
) -> None:
    text = ""
    for name, data, end, comment in events:
        said = [": a comment"] if comment else []
        text += end.join([*said, f"id: {name}", "retry: 5", f"data: {data}", "data:more", "", ""])
    sent = text.encode()
    edges = sorted({0, len(sent), *(cut for cut in cuts if cut < len(sent))})
    reader = EventReader()
    found = [event for start, stop in itertools.pairwise(edges) for event in reader.feed(sent[start:stop])]
    found += list(reader.feed(b"\n"))  # a lone \r at the end may have been half of a line's end
    assert found == [ServerEvent(name, "message", f"{data}\nmore") for name, data, _, _ in events]

"""A watch goes on while its daemon is away for a time: nothing is told twice, nothing is left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.instant import SECOND
from odfd.cli.watch_retry import FIRST_PAUSE, LONGEST_PAUSE, Outage, WatchPosition, ask_again, resume
from odfd.errors import Unreachable


@dataclass
class Speaker:
    """What a session has of time, output and client; nobody waits."""

    now: int = 0
    said: list[str] = field(default_factory=list)
    slept: list[float] = field(default_factory=list)

    @property
    def clock(self) -> Speaker:
        return self

    @property
    def client(self) -> Speaker:
        return self

    def monotonic(self) -> int:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += int(seconds * SECOND)

    def remark(self, text: str) -> None:
        self.said.append(text)

    def lost_connection(self) -> Unreachable:
        return gone()


def gone() -> Unreachable:
    return Unreachable("the daemon at s went away", rule="connection")


def test_pauses_grow_to_a_bound_and_are_short_again_after_a_steady_connection() -> None:
    outage = Outage()
    assert outage.came(0) == ""
    pauses, said = zip(*(outage.note_fault(0, gone()) for _ in range(9)), strict=True)
    assert pauses == (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, LONGEST_PAUSE, LONGEST_PAUSE, LONGEST_PAUSE)
    assert said == ("the daemon at s went away; asking again until it is back (^C ends this)",) + ("",) * 8
    assert outage.came(SECOND) == "the daemon is back"
    assert outage.came(SECOND) == ""
    assert outage.note_fault(2 * SECOND, gone())[0] == LONGEST_PAUSE
    outage.came(3 * SECOND)
    assert outage.note_fault(20 * SECOND, gone())[0] == FIRST_PAUSE


def test_a_daemon_that_was_never_reached_is_a_failure_at_once() -> None:
    session: Any = Speaker()

    def open_(_: Callable[[], None]) -> Iterator[int]:
        raise gone()

    with pytest.raises(Unreachable):
        next(resume(session, open_))
    with pytest.raises(Unreachable):
        ask_again(session, lambda: next(open_(lambda: None)), Outage(), lambda: 1.0)
    assert (session.said, session.slept) == ([], [])


def test_a_stream_that_ends_or_breaks_is_opened_again() -> None:
    session: Any = Speaker()
    turns: list[Any] = [[1, 2], gone(), [], [3]]

    def open_(begun: Callable[[], None]) -> Iterator[int]:
        turn = turns.pop(0)
        if isinstance(turn, Unreachable):
            raise turn
        begun()
        yield from turn

    found = resume(session, open_)
    assert [next(found) for _ in range(3)] == [1, 2, 3]
    assert session.slept == [0.1, 0.2, 0.4]
    lost = "the daemon at s went away; asking again until it is back (^C ends this)"
    assert session.said == [lost, "the daemon is back"] * 2


def test_an_answer_is_waited_for_as_long_as_there_is_time() -> None:
    session: Any = Speaker()
    outage, answers = Outage(), ["a", gone(), gone(), "b"]

    def ask() -> str:
        answer = answers.pop(0)
        if isinstance(answer, Unreachable):
            raise answer
        return answer

    assert [ask_again(session, ask, outage, lambda: 9.0) for _ in range(2)] == ["a", "b"]
    assert session.slept == [0.1, 0.2]
    answers += [gone()]
    with pytest.raises(Unreachable):
        ask_again(session, ask, outage, lambda: 0.0)


@given(
    standing=st.integers(0, 4), later=st.integers(0, 6), since=st.booleans(),
    cuts=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 3)), max_size=5),
)  # fmt: skip
def test_each_change_is_told_once_over_any_cuts(
    standing: int, later: int, since: bool, cuts: list[tuple[int, int]]
) -> None:
    """A log of numbers: ``standing`` of them before the watch, ``later`` ones while it is cut at any lines."""
    newest, at = standing, WatchPosition[tuple[str, int]]("0" if since else "")
    told: list[tuple[str, int]] = []

    def stream(version: str, upto: int) -> Iterator[tuple[str, int]]:
        begin = upto if version == "" else int(version)
        yield from (("Added", number) for number in range(1, upto + 1) if version == "")
        yield "Bookmark", begin
        yield from (("Modified", number) for number in range(begin + 1, upto + 1))

    for cut, more in [*cuts, (100, later)]:
        at.begin()
        for number, line in enumerate(stream(at.version, newest)):
            if number == cut:
                break
            told += at.take(line[0], str(newest if line[0] == "Added" else line[1]), line)
        newest += more
    at.begin()
    for line in stream(at.version, newest):
        told += at.take(line[0], str(newest if line[0] == "Added" else line[1]), line)
    assert [op for op, _ in told].count("Bookmark") == 1
    assert [number for op, number in told if op != "Bookmark"] == list(range(1, newest + 1))


def test_a_watch_begins_anew_when_rights_changed() -> None:
    at = WatchPosition[str]("")
    at.begin()
    assert [at.take("Added", "7", "a"), at.take("Bookmark", "7", "b"), at.take("Reset", "7", "r")] == [
        [], ["a", "b"], ["r"],
    ]  # fmt: skip
    at.begin()
    assert at.version == ""
    assert at.take("Added", "9", "c") == []
    assert at.take("Bookmark", "9", "d") == ["c", "d"]

"""Lists of files that were passed over are bounded, and say of how many more they do not tell."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engines.contract import MAX_SKIPPED, SkippedFile, bounded_list


def files(*numbers: int) -> tuple[SkippedFile, ...]:
    return tuple(SkippedFile(name=f"{number}.csv", reason="it is empty") for number in numbers)


def test_all_are_told_as_long_as_there_is_room() -> None:
    assert bounded_list(files(*range(MAX_SKIPPED), 0)) == files(*range(MAX_SKIPPED))


@given(st.integers(1, 5000), st.integers(0, 300))
def test_what_is_not_told_is_counted_however_often_it_comes(more: int, common: int) -> None:
    told = bounded_list(files(*range(MAX_SKIPPED + more)))
    assert told[:-1] == files(*range(MAX_SKIPPED - 1))
    assert told[-1].name == (f"{more + 1:,} more files")
    assert bounded_list((*told, *told)) == told
    assert bounded_list((*told, *files(*range(min(common, MAX_SKIPPED - 1))))) == told
    assert bounded_list((*told, *files(-1)))[-1].name == f"{more + 2:,} more files"


def test_an_engine_that_says_odd_numbers_breaks_nothing() -> None:
    odd = SkippedFile(name="many", reason=bounded_list(files(*range(MAX_SKIPPED + 1)))[-1].reason)
    assert bounded_list((odd,)) == ()
